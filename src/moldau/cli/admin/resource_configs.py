"""Reading and changing configs, for the commands that show or set them."""

from collections.abc import Iterable, Mapping
from typing import Final

from moldau.client.cluster import Client, check
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest

RESOURCE_TYPES: Final = {"topic": 2, "broker": 4, "broker-logger": 8, "client-metrics": 16, "group": 32}
TYPE_NAMES: Final = {number: name for name, number in RESOURCE_TYPES.items()}
SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "file",
    5: "default",
    6: "broker-logger",
    7: "client-metrics",
    8: "group",
}
"""Kafka's ConfigSource: the origin of a value."""
SOURCE_DEFAULT: Final = 5
SOURCE_TOPIC: Final = 1
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def _asked(client: Client, kind: str, name: str) -> int | None:
    """The broker that must be asked for a resource's configs. Only the broker itself knows its own
    configs."""
    return int(name) if kind.startswith("broker") and name.isdigit() else None


async def list_resources(client: Client, kind: str | None) -> list[tuple[str, str]]:
    """Pairs ``(kind, name)`` for each resource with configs, sorted. The resources are of one kind, or of all
    kinds."""
    kinds = [RESOURCE_TYPES[kind]] if kind is not None else []
    response = await client.ask(ListConfigResourcesRequest(resource_types=kinds))
    check(response.error_code, None, "configs")
    return sorted(
        (TYPE_NAMES.get(row.resource_type, str(row.resource_type)), row.resource_name)
        for row in response.config_resources
    )


async def describe_configs(
    client: Client, kind: str, names: Iterable[str], *, synonyms: bool = False, docs: bool = False
) -> dict[str, list[DescribeConfigsResourceResult]]:
    """Return the effective configs of each resource. The configs are in the order of their names."""
    found = {}
    for name in names:
        resource = DescribeConfigsResource(
            resource_type=RESOURCE_TYPES[kind], resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=synonyms, include_documentation=docs
        )
        response = await client.ask(request, broker=_asked(client, kind, name))
        for result in response.results:
            check(result.error_code, result.error_message, f"{kind} {name}".rstrip())
            found[name] = sorted(result.configs, key=lambda row: row.name)
    return found


async def changed_configs(client: Client, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """The configs that are set on each topic."""
    return {
        name: {row.name: row.value for row in rows if row.config_source == SOURCE_TOPIC}
        for name, rows in (await describe_configs(client, "topic", topics)).items()
    }


async def names_with(client: Client, names: Iterable[str], key: str, value: str) -> set[str]:
    """Return the given topics for which the config has the value. The result is empty if the cluster does not
    support the config."""
    resources = [
        DescribeConfigsResource(
            resource_type=RESOURCE_TYPES["topic"], resource_name=name, configuration_keys=[key]
        )
        for name in names
    ]
    if not resources:
        return set()
    response = await client.ask(DescribeConfigsRequest(resources=resources))
    for result in response.results:
        check(result.error_code, result.error_message, f"topic {result.resource_name}")
    return {
        result.resource_name
        for result in response.results
        if any(row.name == key and row.value == value for row in result.configs)
    }


async def set_configs(
    client: Client,
    kind: str,
    name: str,
    changes: Mapping[str, str],
    unset: Iterable[str],
    *,
    append: Mapping[str, str] | None = None,
    subtract: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Change some configs of a resource. Its other configs do not change. Raises :class:`CommandError`."""
    rows = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in changes.items()]
    rows += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in unset]
    for operation, values in ((APPEND, append), (SUBTRACT, subtract)):
        rows += [
            AlterableConfig(name=key, config_operation=operation, value=value)
            for key, value in (values or {}).items()
        ]
    resource = AlterConfigsResource(resource_type=RESOURCE_TYPES[kind], resource_name=name, configs=rows)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = await client.ask(request, broker=_asked(client, kind, name))
    for result in response.responses:
        check(result.error_code, result.error_message, f"{kind} {name}".rstrip())
