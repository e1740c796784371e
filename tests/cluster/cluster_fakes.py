"""A small config policy for tests in this folder. The policy applies real rules, but knows only a few
keys."""

from collections.abc import Mapping, Sequence

from moldau.cluster.decisions.view import DescribedConfig
from moldau.cluster.image.image import ResourceType
from moldau.runtime import ErrorCode, KafkaError

_TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "diskless.enable": "false",
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
    "unclean.leader.election.enable": "false",
    "leader.replication.throttled.replicas": "",
}
_LISTS = frozenset({"cleanup.policy", "leader.replication.throttled.replicas"})


class SmallConfigPolicy:
    """A policy with some topic configs that accepts any value for other resources."""

    def __init__(self, diskless_default: bool = False) -> None:
        self._defaults = {**_TOPIC_DEFAULTS, "diskless.enable": str(diskless_default).lower()}

    def validate(self, resource_type: ResourceType, name: str, values: Mapping[str, str]) -> None:
        if resource_type is not ResourceType.TOPIC:
            return
        for key, value in values.items():
            if key not in self._defaults:
                raise KafkaError(ErrorCode.invalid_config, f"Unknown topic config name: {key}")
            if key == "retention.ms" and not value.lstrip("-").isdecimal():
                raise KafkaError(ErrorCode.invalid_config, f"Invalid value {value} for {key}")

    def is_list(self, resource_type: ResourceType, key: str) -> bool:
        return key in _LISTS

    def default(self, resource_type: ResourceType, key: str) -> str | None:
        return self._defaults.get(key) if resource_type is ResourceType.TOPIC else None

    def describe_topic(self, overrides: Mapping[str, str]) -> Sequence[DescribedConfig]:
        return [
            DescribedConfig(
                name=key,
                value=overrides.get(key, default),
                read_only=False,
                source=1 if key in overrides else 5,
                is_sensitive=False,
            )
            for key, default in sorted(self._defaults.items())
        ]
