"""The broker configs that are the defaults of topic configs, and the conversion of their units.

The first broker config that is set applies; when none is set, the first one that has a default.
"""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.config.definition import Value

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_FOR_EVER = -1


class Synonym(NamedTuple):
    """A broker config, and the factor that converts its value to the topic's unit."""

    name: str
    factor: int = 1
    low: int | None = None

    def convert(self, value: Value) -> Value:
        """The value in the topic's unit; negative values are not converted, and are at least ``low``."""
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        converted = value * self.factor if value >= 0 else value
        return converted if self.low is None else max(self.low, converted)


def _same(*names: str) -> dict[str, tuple[Synonym, ...]]:
    return {name: (Synonym(name),) for name in names}


def _prefixed(prefix: str, *names: str) -> dict[str, tuple[Synonym, ...]]:
    return {name: (Synonym(prefix + name),) for name in names}


TOPIC_SYNONYMS: Mapping[str, tuple[Synonym, ...]] = {
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "retention.ms": (
        Synonym("log.retention.ms", low=_FOR_EVER),
        Synonym("log.retention.minutes", _MINUTE_MS, _FOR_EVER),
        Synonym("log.retention.hours", _HOUR_MS, _FOR_EVER),
    ),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "diskless.enable": (Synonym("log.diskless.enable"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    **_prefixed("log.cleaner.", "delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms"),
    **_prefixed(
        "log.",
        "segment.bytes",
        "retention.bytes",
        "index.interval.bytes",
        "cleanup.policy",
        "preallocate",
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "local.retention.ms",
        "local.retention.bytes",
    ),
    **_same(
        "unclean.leader.election.enable",
        "min.insync.replicas",
        "compression.type",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
    ),
}

FIXED_AT_CREATION = frozenset({"diskless.enable"})
"""Keys that a topic copies from its broker at creation. Later, an unset key has the default of the key."""

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    synonym.name: tuple(other.name for other in group[position:])
    for group in TOPIC_SYNONYMS.values()
    if len(group) > 1
    for position, synonym in enumerate(group)
}
"""A broker config and its synonyms, in order of precedence."""
