"""DescribeConfigs and ListConfigResources: effective values with their sources."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from moldau.cluster.decisions.topic_names import check_name
from moldau.cluster.image.image import ResourceType
from moldau.config import client_metrics
from moldau.config.broker import BROKER, BrokerConfig
from moldau.config.definition import ConfigSource
from moldau.config.described_config import ConfigEntry, is_secret, shown_value
from moldau.config.group import GROUP, GroupConfig
from moldau.network.context import RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from moldau.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from moldau.protocol.rows import Cut
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.metadata.topic_configs import EffectiveConfigs
from moldau.server.observing import loggers


class ConfigHandlers:
    """Handlers of requests that read configurations."""

    def __init__(self, view: ClusterView, configs: EffectiveConfigs) -> None:
        self._view = view
        self._configs = configs

    def table(self) -> dict[int, Handler]:
        return {
            # A single resource has more than a hundred keys, so the response is long.
            ApiKey.DESCRIBE_CONFIGS: Served(
                self.describe_configs,
                cuts=(Cut(("resources",), ("results",), rows=8, distinct=_distinct_resources),),
            ),
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """List the resources that have configs (KIP-1142). In version 0 of the API, the response lists the
        subscriptions to client metrics (KIP-714)."""
        image = self._view.image
        found: dict[int, Callable[[], Iterable[str]]] = {
            ResourceType.TOPIC: lambda: (topic.name for topic in image.topics),
            ResourceType.BROKER: lambda: map(str, image.brokers),
            ResourceType.BROKER_LOGGER: lambda: map(str, image.brokers),
            ResourceType.CLIENT_METRICS: partial(self._configured, ResourceType.CLIENT_METRICS),
            ResourceType.GROUP: partial(self._configured, ResourceType.GROUP),
        }
        wanted = set(request.resource_types) or set(found)
        if context.api_version == 0:
            wanted = {int(ResourceType.CLIENT_METRICS)}
        if not wanted <= found.keys():
            raise KafkaError(ErrorCode.unsupported_version, "a resource type is not known here")
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=int(kind))
                for kind in sorted(wanted)
                for name in found[kind]()
            ]
        )

    def _configured(self, kind: ResourceType) -> list[str]:
        return [name for found, name in self._view.image.configs if found == kind]

    def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> DescribeConfigsResponse:
        # If a resource is named several times, it is described only once, because its description is a
        # thousand times as long as its name.
        wanted: dict[tuple[int, str], DescribeConfigsResource] = {}
        for resource in request.resources:
            wanted.setdefault((resource.resource_type, resource.resource_name), resource)
        return DescribeConfigsResponse(
            results=[self._describe(resource, request) for resource in wanted.values()]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        try:
            rows = self._rows(resource.resource_type, resource.resource_name, request)
        except KafkaError as error:
            return DescribeConfigsResult(
                error_code=error.code,
                error_message=error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        wanted = resource.configuration_keys
        return DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[row for row in rows if not wanted or row.name in wanted],
        )

    def _rows(
        self, resource_type: int, name: str, request: DescribeConfigsRequest
    ) -> list[DescribeConfigsResourceResult]:
        if resource_type == ResourceType.BROKER_LOGGER:
            return self._loggers(name)
        lookups: dict[int, Callable[[str], Iterable[ConfigEntry]]] = {
            ResourceType.TOPIC: self._topic,
            ResourceType.BROKER: self._broker,
            ResourceType.CLIENT_METRICS: self._client_metrics,
            ResourceType.GROUP: self._group,
        }
        lookup = lookups.get(resource_type)
        if lookup is None:
            raise KafkaError(ErrorCode.invalid_request, f"Unexpected resource type {resource_type}")
        rows = [_row(entry, request) for entry in lookup(name)]
        return rows + self._of_plugins(name) if resource_type == ResourceType.BROKER else rows

    def _of_plugins(self, name: str) -> list[DescribeConfigsResourceResult]:
        """The dynamic configs of a broker that have no definition, for example keys of plug-ins. Their values
        are hidden."""
        sources = {"": ConfigSource.DYNAMIC_DEFAULT_BROKER}
        if name:
            sources[name] = ConfigSource.DYNAMIC_BROKER
        found = {
            key: (value, source)
            for resource, source in sources.items()
            for key, value in self._view.image.config(ResourceType.BROKER, resource).items()
            if key not in BROKER
        }
        return [
            DescribeConfigsResourceResult(
                name=key,
                value=shown_value(BROKER.get(key), value),
                config_source=int(source),
                is_sensitive=is_secret(BROKER.get(key)),
            )
            for key, (value, source) in sorted(found.items())
        ]

    def _topic(self, name: str) -> Iterable[ConfigEntry]:
        check_name(name)
        if self._view.image.topics.get(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return self._configs.topic(name).describe()

    def _broker(self, name: str) -> Iterable[ConfigEntry]:
        if name == "":
            return self._broker_defaults()
        self._check_is_local(name, f"{self._view.local_id} or empty string,")
        return self._configs.broker.describe()

    def _broker_defaults(self) -> Iterable[ConfigEntry]:
        """Configs that are set for all brokers, including configs that this broker cannot use."""
        defaults = self._view.image.config(ResourceType.BROKER, "")
        config = BrokerConfig({}, {key: defaults[key] for key in sorted(defaults) if key in BROKER})
        for key in config.cluster_defaults:
            entry = config.entry(key)
            set_for_all = [
                synonym for synonym in entry.synonyms if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER
            ]
            yield replace(entry, synonyms=tuple(set_for_all))

    def _loggers(self, name: str) -> list[DescribeConfigsResourceResult]:
        if name == "":
            raise KafkaError(ErrorCode.invalid_request, "Broker id must not be empty")
        self._check_is_local(name, f"{self._view.local_id}")
        return [
            DescribeConfigsResourceResult(
                name=logger, value=level, config_source=int(ConfigSource.DYNAMIC_BROKER_LOGGER)
            )
            for logger, level in loggers.levels().items()
        ]

    def _check_is_local(self, name: str, expected: str) -> None:
        if not name.removeprefix("-").isdecimal():
            raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
        if int(name) != self._view.local_id:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {expected} but received {name}"
            )

    def _client_metrics(self, name: str) -> Iterable[ConfigEntry]:
        if name == "":
            raise KafkaError(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")
        return client_metrics.describe(self._view.image.config(ResourceType.CLIENT_METRICS, name))

    def _group(self, name: str) -> Iterable[ConfigEntry]:
        if name == "":
            raise KafkaError(ErrorCode.invalid_request, "Group name must not be empty")
        overrides = self._view.image.config(ResourceType.GROUP, name)
        return GroupConfig(self._configs.broker, GROUP.usable(overrides)[0]).describe()


def _row(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(name=synonym.name, value=synonym.text, source=int(synonym.source))
        for synonym in entry.synonyms
    ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.text,
        read_only=entry.is_read_only,
        config_source=int(entry.source),
        is_sensitive=is_secret(entry.key),
        synonyms=synonyms if request.include_synonyms else (),
        config_type=int(entry.key.type),
        documentation=entry.key.doc if request.include_documentation else None,
    )


def _distinct_resources(rows: Sequence[Any]) -> Iterable[Any]:
    found: dict[tuple[int, str], Any] = {}
    for row in rows:
        found.setdefault((row.resource_type, row.resource_name), row)
    return found.values()
