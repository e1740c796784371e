"""The options of ``spark.read.format("moldau")``: Spark's Kafka connector's, as far as they are built."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.errors import ToolError

EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets with a meaning of their own in the connector's JSON."""

BOOTSTRAP: Final = "kafka.bootstrap.servers"
ISOLATION: Final = "kafka.isolation.level"
_KNOWN: Final = (
    BOOTSTRAP,
    ISOLATION,
    "subscribe",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
)
_BY_LOWER_CASE: Final = {name.lower(): name for name in _KNOWN}

TopicOffsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What is read. ``topics`` has the chosen partitions of each topic, ``None`` for all.

    ``starting`` and ``ending`` are :data:`EARLIEST`, :data:`LATEST` or offsets by topic and partition.
    """

    bootstrap: str
    topics: Mapping[str, tuple[int, ...] | None]
    starting: TopicOffsets | int
    ending: TopicOffsets | int
    min_partitions: int
    fail_on_data_loss: bool
    include_headers: bool
    committed_only: bool


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Names in any case. Raises :class:`ToolError` for what is not built, not known or makes no sense."""
    found: dict[str, str] = {}
    for key, value in given.items():
        name = _BY_LOWER_CASE.get(key.lower())
        if name is None:
            raise ToolError(f"option {key!r} is not supported; these are: {', '.join(_KNOWN)}")
        found[name] = value
    if BOOTSTRAP not in found:
        raise ToolError(f"option {BOOTSTRAP!r} is missing")
    isolation = found.get(ISOLATION, "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ToolError(f"option {ISOLATION!r} is read_committed or read_uncommitted, not {isolation!r}")
    return SourceOptions(
        bootstrap=found[BOOTSTRAP],
        topics=_topics(found),
        starting=_offsets("startingOffsets", found.get("startingOffsets", "earliest"), "earliest"),
        ending=_offsets("endingOffsets", found.get("endingOffsets", "latest"), "latest"),
        min_partitions=_count("minPartitions", found.get("minPartitions", "1")),
        fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
        include_headers=_flag("includeHeaders", found.get("includeHeaders", "false")),
        committed_only=isolation == "read_committed",
    )


def _topics(found: Mapping[str, str]) -> Mapping[str, tuple[int, ...] | None]:
    if ("subscribe" in found) == ("assign" in found):
        raise ToolError("give one of the options 'subscribe' and 'assign'")
    if "subscribe" in found:
        names = [name.strip() for name in found["subscribe"].split(",") if name.strip()]
        if not names:
            raise ToolError("option 'subscribe' names no topic")
        return dict.fromkeys(names)
    chosen = _json("assign", found["assign"])
    try:
        return {
            topic: tuple(sorted({int(one) for one in partitions})) for topic, partitions in chosen.items()
        }
    except (TypeError, ValueError, AttributeError):
        raise ToolError("""option 'assign' is JSON like {"orders": [0, 1]}""") from None


def _offsets(name: str, text: str, word: str) -> TopicOffsets | int:
    if text.strip().lower() == word:
        return EARLIEST if word == "earliest" else LATEST
    example = f"""option {name!r} is {word} or JSON like {{"orders": {{"0": 23, "1": -2}}}}"""
    if not text.strip().startswith("{"):
        raise ToolError(example)
    try:
        offsets = {
            topic: {int(partition): int(offset) for partition, offset in rows.items()}
            for topic, rows in _json(name, text).items()
        }
    except (TypeError, ValueError, AttributeError):
        raise ToolError(example) from None
    forbidden = LATEST if word == "earliest" else EARLIEST
    for rows in offsets.values():
        if any(offset < EARLIEST or offset == forbidden for offset in rows.values()):
            raise ToolError(f"option {name!r} has an offset that it cannot have in a batch query")
    return offsets


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ToolError(f"option {name!r} is not JSON: {text!r}") from None


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ToolError(f"option {name!r} is a positive number, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ToolError(f"option {name!r} is true or false, not {text!r}")
    return text.lower() == "true"
