"""Computes the new offsets when the offsets of a group are reset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import typer

from moldau.cli.errors import CommandError
from moldau.client.cluster import EARLIEST, LATEST, Client, ClusterTopic

TopicPartitions: TypeAlias = dict[str, list[int]]
"""Partitions by topic. An empty list means all partitions of the topic."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The kind of reset. Exactly one of the fields is set. ``timestamp`` has Kafka's meaning: the value -1
    means the end of the log, and -2 means its start."""

    timestamp: int | None = None
    offset: int | None = None
    shift_by: int | None = None

    @classmethod
    def chosen(
        cls,
        *,
        to_earliest: bool,
        to_latest: bool,
        to_offset: int | None,
        to_time_ms: int | None,
        shift_by: int | None,
    ) -> "Reset":
        """Read the reset from the options. Raises a usage error unless there is exactly one option."""
        found = [cls(timestamp=EARLIEST)] * to_earliest + [cls(timestamp=LATEST)] * to_latest
        if to_offset is not None:
            found.append(cls(offset=to_offset))
        if to_time_ms is not None:
            found.append(cls(timestamp=to_time_ms))
        if shift_by is not None:
            found.append(cls(shift_by=shift_by))
        if len(found) != 1:
            raise typer.BadParameter(
                "give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
            )
        return found[0]


def parse_topics(given: Sequence[str]) -> TopicPartitions:
    """Read ``TOPIC`` or ``TOPIC:0,1``. Raises a usage error."""
    found: TopicPartitions = {}
    for text in given:
        topic, colon, numbers = text.partition(":")
        words = numbers.split(",") if colon else []
        if not topic or not all(word.isascii() and word.isdigit() for word in words):
            raise typer.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:0,1", param_hint="--topic")
        found.setdefault(topic, []).extend(map(int, words))
    return found


async def new_offsets(
    client: Client, topic: ClusterTopic, partitions: Sequence[int], committed: Mapping[int, int], reset: Reset
) -> dict[int, int]:
    """The new offset of each partition. As in Kafka's tool, it cannot be outside the log's offsets.

    Raises :class:`CommandError` for a shift without a committed offset.
    """
    earliest = await client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    latest = await client.offsets(topic, dict.fromkeys(partitions, LATEST))
    if reset.timestamp is not None:
        found = await client.offsets(topic, dict.fromkeys(partitions, reset.timestamp))
        # The offset -1 means that all records are earlier than the requested time, so the group's offset is
        # set to the end of the log.
        return {
            partition: row.offset if row.offset >= 0 else latest[partition].offset
            for partition, row in found.items()
        }
    wanted = {}
    for partition in partitions:
        if reset.offset is not None:
            offset = reset.offset
        elif partition in committed:
            assert reset.shift_by is not None
            offset = committed[partition] + reset.shift_by
        else:
            raise CommandError(f"{topic.name}-{partition} has no committed offset to shift")
        wanted[partition] = min(max(offset, earliest[partition].offset), latest[partition].offset)
    return wanted
