"""Dynamic configs of topics, brokers, client metrics and groups."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Protocol, TypeVar

from moldau.cluster.decisions.chunks.admission import is_tiered, reason_of_config
from moldau.cluster.decisions.kinds.table import check_change, fixed_configs
from moldau.cluster.decisions.partitions.election_causes import eligible_changes
from moldau.cluster.decisions.partitions.topic_rules import MIN_IN_SYNC_REPLICAS
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.image import ResourceType
from moldau.protocol.messages import alter_configs as legacy
from moldau.protocol.messages import incremental_alter_configs as incremental
from moldau.protocol.records.metadata import ConfigRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError

_ENABLE, _DELETE = "remote.storage.enable", "remote.log.delete.on.disable"


def _check_tiering(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ``KafkaError(invalid_config)`` if the change disables remote storage but keeps the remote
    data."""
    if _is_true(old, _ENABLE) and not _is_true(new, _ENABLE) and not _is_true(new, _DELETE):
        raise KafkaError(
            ErrorCode.invalid_config,
            "It is invalid to disable remote storage without deleting remote data. To keep the remote data"
            " and turn to read only, set remote.storage.enable=true,remote.log.copy.disable=true; to disable"
            " remote storage and delete all remote data, set"
            " remote.storage.enable=false,remote.log.delete.on.disable=true.",
        )


def _is_true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").strip().lower() == "true"


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs on a key (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _NamedResource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=_NamedResource)


def incremental_alter_configs(
    view: View, request: incremental.IncrementalAlterConfigsRequest
) -> ControllerResult:
    """Change single keys. For each resource, either all changes are made or no change is made."""
    outcomes, records = _alter(view, request.resources, _operated, request.validate_only)
    responses = [
        incremental.AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
        for (kind, name), (code, message) in outcomes.items()
    ]
    return ControllerResult(incremental.IncrementalAlterConfigsResponse(responses=responses), records)


def alter_configs(view: View, request: legacy.AlterConfigsRequest) -> ControllerResult:
    """Replace all keys of a resource. Keys that are not named are deleted."""
    outcomes, records = _alter(view, request.resources, _replaced, request.validate_only)
    responses = [
        legacy.AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
        for (kind, name), (code, message) in outcomes.items()
    ]
    return ControllerResult(legacy.AlterConfigsResponse(responses=responses), records)


_Outcomes = dict[tuple[int, str], tuple[ErrorCode, str | None]]


def _alter(
    view: View,
    resources: Iterable[R],
    new_values: Callable[[View, ResourceType, R], dict[str, str]],
    validate_only: bool,
) -> tuple[_Outcomes, list[Message]]:
    resources = list(resources)
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    outcomes: _Outcomes = {}
    records: list[Message] = []
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        try:
            if counts[key] > 1:
                raise KafkaError(ErrorCode.invalid_request, "The resource is named more than once.")
            resource_type = _check_resource(view, *key)
            new = new_values(view, resource_type, resource)
            changes = _changes(view, resource_type, resource.resource_name, new)
        except KafkaError as error:
            outcomes[key] = (error.code, error.message)
            continue
        view = replace(view, image=image_of(changes, view.image))
        records += changes
        outcomes[key] = (ErrorCode.none, None)
    return outcomes, [] if validate_only else records


def _check_resource(view: View, kind: int, name: str) -> ResourceType:
    if kind == ResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        if view.image.topics.get(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' does not exist.")
    elif kind == ResourceType.BROKER:
        if name and not name.isdecimal():
            raise KafkaError(ErrorCode.invalid_request, f"'{name}' is not a broker id.")
        if name and int(name) not in view.image.brokers and int(name) not in view.image.controllers:
            raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker {name} is not registered.")
    elif kind in (ResourceType.CLIENT_METRICS, ResourceType.GROUP):
        if not name:
            what = "group" if kind == ResourceType.GROUP else "client metrics"
            raise KafkaError(ErrorCode.invalid_request, f"Default {what} resources are not allowed.")
    else:
        raise KafkaError(
            ErrorCode.invalid_request, f"Configs of resource type {kind} are not kept by the controller."
        )
    return ResourceType(kind)


def _operated(
    view: View, resource_type: ResourceType, resource: incremental.AlterConfigsResource
) -> dict[str, str]:
    values = dict(view.image.config(resource_type, resource.resource_name))
    names = Counter(config.name for config in resource.configs)
    for config in resource.configs:
        if names[config.name] > 1:
            raise KafkaError(ErrorCode.invalid_request, f"Config {config.name} is named more than once.")
        if config.config_operation == ConfigOperation.DELETE:
            values.pop(config.name, None)
            continue
        if config.value is None:
            raise KafkaError(ErrorCode.invalid_config, f"Null value not supported for config {config.name}.")
        if config.config_operation == ConfigOperation.SET:
            values[config.name] = config.value
        elif config.config_operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            values[config.name] = _list_changed(
                view,
                resource_type,
                values,
                config.name,
                ConfigOperation(config.config_operation),
                config.value,
            )
        else:
            raise KafkaError(
                ErrorCode.invalid_request, f"Unknown config operation {config.config_operation}."
            )
    return values


def _list_changed(
    view: View,
    resource_type: ResourceType,
    values: Mapping[str, str],
    key: str,
    operation: ConfigOperation,
    value: str,
) -> str:
    if not view.configs.is_list(resource_type, key):
        raise KafkaError(
            ErrorCode.invalid_config, f"Cannot {operation.name} to config {key}, which is not a list."
        )
    current = values.get(key)
    if current is None:
        current = view.configs.default(resource_type, key) or ""
    items = [item for item in current.split(",") if item]
    for item in (part.strip() for part in value.split(",")):
        if operation is ConfigOperation.SUBTRACT:
            items = [kept for kept in items if kept != item]
        elif item and item not in items:
            items.append(item)
    return ",".join(items)


def _replaced(
    view: View, resource_type: ResourceType, resource: legacy.AlterConfigsResource
) -> dict[str, str]:
    values: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.invalid_config, f"Null value not supported for config {config.name}.")
        values[config.name] = config.value
    old = view.image.config(resource_type, resource.resource_name)
    # Older tools replace all configs of a topic. These tools may not know the configs that are fixed at
    # creation. Such configs therefore keep their values.
    return {**fixed_configs(old), **values} if resource_type is ResourceType.TOPIC else values


def _changes(view: View, resource_type: ResourceType, name: str, new: Mapping[str, str]) -> list[Message]:
    old = view.image.config(resource_type, name)
    if resource_type is ResourceType.TOPIC:
        check_change(view, name, old, new)
        _check_tiering(old, new)
        _check_chunks(view, name, old, new)
    view.configs.validate(resource_type, name, new)
    records: list[Message] = [
        ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=new.get(key))
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    is_minimum_new = old.get(MIN_IN_SYNC_REPLICAS) != new.get(MIN_IN_SYNC_REPLICAS)
    if is_minimum_new and resource_type in (ResourceType.TOPIC, ResourceType.BROKER):
        names = [name] if resource_type is ResourceType.TOPIC else None
        records += eligible_changes(replace(view, image=image_of(records, view.image)), names)
    return records


def _check_chunks(view: View, name: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ``KafkaError(invalid_config)`` if a topic has chunks and the new configs do not allow chunks.

    Also raise it if a topic that has or had chunks would become tiered, or would no longer be tiered.
    """
    topic = view.image.topics.get(name)
    if topic is None or not any(partition.start_offset >= 0 for partition in topic.partitions):
        return

    def value_in(configs: Mapping[str, str]) -> Callable[[str], str | None]:
        return lambda key: configs.get(key, view.configs.default(ResourceType.TOPIC, key))

    if is_tiered(value_in(old)) != is_tiered(value_in(new)):
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Topic {name} has or had chunks: its remote.storage.enable cannot be changed.",
        )
    if not any(partition.chunks for partition in topic.partitions):
        return
    reason = reason_of_config(value_in(new))
    if reason is not None:
        raise KafkaError(
            ErrorCode.invalid_config, f"Topic {name} has chunks, and with these configs it {reason}."
        )
