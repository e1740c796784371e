"""Checks and changes configs for the controller, with Kafka's config keys."""

from collections.abc import Callable, Mapping, Sequence

from moldau.cluster.decisions.kinds.table import check_enabled
from moldau.cluster.decisions.view import DescribedConfig
from moldau.cluster.image.image import ResourceType
from moldau.config import BROKER, TOPIC, BrokerConfig, ConfigError, ConfigType, TopicConfig, client_metrics
from moldau.config.group import GroupConfig
from moldau.runtime import ErrorCode, KafkaError


class KafkaConfigPolicy:
    """A :class:`moldau.cluster.decisions.view.ConfigPolicy` that uses ``moldau.config``.

    ``broker`` returns the node's config with the current dynamic defaults.
    """

    def __init__(self, broker: Callable[[], BrokerConfig]) -> None:
        self._broker = broker

    def validate(self, resource_type: ResourceType, name: str, values: Mapping[str, str]) -> None:
        try:
            if resource_type is ResourceType.TOPIC:
                check_enabled(TopicConfig.validate(values, self._broker()))
            elif resource_type is ResourceType.BROKER:
                self._broker().check_dynamic(values, is_default=not name)
            elif resource_type is ResourceType.GROUP:
                GroupConfig.validate(values, self._broker())
            elif resource_type is ResourceType.CLIENT_METRICS:
                client_metrics.validate(values)
        except client_metrics.SubscriptionError as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from None
        except ConfigError as error:
            # As in Kafka, the error code for a value that a running broker refuses is INVALID_REQUEST.
            is_broker = resource_type is ResourceType.BROKER
            code = ErrorCode.invalid_request if is_broker else ErrorCode.invalid_config
            raise KafkaError(code, str(error)) from None

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        # Kafka's controller knows the types of keys only for topics and brokers. Therefore, for other
        # resources, no value can be appended to the value of a key.
        definitions = {ResourceType.TOPIC: TOPIC, ResourceType.BROKER: BROKER}
        definition = definitions[resource_type].get(key) if resource_type in definitions else None
        return definition is not None and definition.type is ConfigType.LIST

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        if resource_type is ResourceType.TOPIC:
            return TopicConfig.default_of_new(self._broker(), key) if key in TOPIC else None
        if resource_type is ResourceType.BROKER and key in BROKER:
            return self._broker().entry(key).text
        return None

    def describe_topic(self, overrides: Mapping[str, str]) -> Sequence[DescribedConfig]:
        return [
            DescribedConfig(
                name=entry.name,
                value=entry.text,
                read_only=False,
                source=int(entry.source),
                is_sensitive=entry.key.is_sensitive,
            )
            for entry in TopicConfig.effective(self._broker(), overrides).describe()
        ]
