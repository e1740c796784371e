"""The position at which reading starts. It is ``beginning``, ``latest``, an offset, the last N records, or a
time."""

from collections.abc import Collection
from dataclasses import dataclass

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import timestamp_ms
from moldau.client.cluster import EARLIEST, LATEST, Client, ClusterTopic

BEGINNING_WORDS = ("beginning", "earliest", "start")
LATEST_WORDS = ("latest", "end")


@dataclass(frozen=True, slots=True)
class Start:
    """A start position. Exactly one field is set: a special or real timestamp, an offset, or a number of
    records before the end."""

    timestamp: int | None = None
    offset: int | None = None
    last: int | None = None


def parse_start(text: str, option: str = "--from") -> Start:
    """Read a start position from text. Raises a usage error."""
    if text in BEGINNING_WORDS:
        return Start(timestamp=EARLIEST)
    if text in LATEST_WORDS:
        return Start(timestamp=LATEST)
    if text.startswith("@"):
        return Start(timestamp=timestamp_ms(text[1:], option))
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        return Start(last=int(digits)) if text.startswith("-") else Start(offset=int(digits))
    reason = f"{text!r} is none of: beginning, latest, an offset, -N for the last N, @TIME"
    raise typer.BadParameter(reason, param_hint=option)


async def find_positions(
    client: Client, topic: ClusterTopic, partitions: Collection[int], start: Start
) -> dict[int, int]:
    """The start offset of each partition. Raises :class:`CommandError` for a partition that does not
    exist.
    """
    if start.timestamp is not None and start.timestamp < 0:
        found = await client.offsets(topic, dict.fromkeys(partitions, start.timestamp))
        return {partition: row.offset for partition, row in found.items()}
    earliest = await client.offsets(topic, dict.fromkeys(partitions, EARLIEST))
    latest = await client.offsets(topic, dict.fromkeys(partitions, LATEST))
    if start.timestamp is not None:
        found = await client.offsets(topic, dict.fromkeys(partitions, start.timestamp))
        return {
            partition: row.offset if row.offset >= 0 else latest[partition].offset
            for partition, row in found.items()
        }
    if start.last is not None:
        return {
            partition: max(earliest[partition].offset, latest[partition].offset - start.last)
            for partition in partitions
        }
    assert start.offset is not None
    for partition in partitions:
        low, high = earliest[partition].offset, latest[partition].offset
        if not low <= start.offset <= high:
            reason = (
                f"offset {start.offset} is outside of {topic.name}-{partition}, which has {low} to {high}"
            )
            raise CommandError(reason)
    return dict.fromkeys(partitions, start.offset)
