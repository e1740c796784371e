"""DescribeConfigs and ListConfigResources: effective values with their sources."""

from collections.abc import Callable, Iterable
from functools import partial

from moldau.cluster.image import ResourceType
from moldau.config.broker import BROKER
from moldau.config.entry import ConfigEntry
from moldau.network.context import RequestContext
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
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.cluster_view import ClusterView
from moldau.server.dispatch import Handler
from moldau.server.topic_configs import EffectiveConfigs


class ConfigHandlers:
    """What clients may read of configurations."""

    def __init__(self, view: ClusterView, configs: EffectiveConfigs) -> None:
        self._view = view
        self._configs = configs

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """KIP-1142; version 0 is KIP-714's list of client metrics subscriptions."""
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
        return DescribeConfigsResponse(
            results=[self._describe(resource, request) for resource in request.resources]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        try:
            entries = list(self._entries(resource.resource_type, resource.resource_name))
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
            configs=[_row(entry, request) for entry in entries if not wanted or entry.name in wanted],
        )

    def _entries(self, resource_type: int, name: str) -> Iterable[ConfigEntry]:
        lookups: dict[int, Callable[[str], Iterable[ConfigEntry]]] = {
            ResourceType.TOPIC: self._topic,
            ResourceType.BROKER: self._broker,
        }
        lookup = lookups.get(resource_type)
        if lookup is None:
            raise KafkaError(
                ErrorCode.invalid_request, f"Configs of resource type {resource_type} are not supported"
            )
        return lookup(name)

    def _topic(self, name: str) -> Iterable[ConfigEntry]:
        if self._view.image.topics.get(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return self._configs.topic(name).describe()

    def _broker(self, name: str) -> Iterable[ConfigEntry]:
        if name == "":
            defaults = self._view.image.config(ResourceType.BROKER, "")
            dynamic = self._configs.broker
            return [dynamic.entry(key) for key in sorted(defaults) if key in BROKER]
        if name != str(self._view.local_id):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Unexpected broker id, expected {self._view.local_id}, but received {name}",
            )
        return self._configs.broker.describe()


def _row(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=int(synonym.source))
        for synonym in entry.synonyms
    ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.text,
        read_only=entry.is_read_only,
        config_source=int(entry.source),
        is_sensitive=entry.key.is_sensitive,
        synonyms=synonyms if request.include_synonyms else (),
        config_type=int(entry.key.type),
        documentation=entry.key.doc if request.include_documentation else None,
    )
