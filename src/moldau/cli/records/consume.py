"""``moldau consume``."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from moldau.cli.app import new_app
from moldau.cli.groups.member import GroupMember
from moldau.cli.groups.offsets import committed_offsets
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption
from moldau.cli.records.record_format import JsonFormat, LineFormat, write
from moldau.cli.records.record_options import (
    CountOption,
    FollowOption,
    FromOption,
    GroupOption,
    IdleTimeoutOption,
    LineKind,
    OutputOption,
    PartitionsOption,
    ReadCommittedOption,
    SeparatorOption,
    ShowHeadersOption,
    ShowKeyOption,
    ShowOffsetOption,
    ShowTimestampOption,
)
from moldau.cli.records.start_positions import Start, find_positions, parse_start
from moldau.client.cluster import LATEST, Client, ClusterTopic, with_client
from moldau.client.reader import Fetched, TopicReader

app = new_app()

COMMIT_INTERVAL_S: Final = 5.0


@dataclass(slots=True)
class _Reading:
    """State of a consume command: partitions, output format and progress."""

    topic: str
    partitions: list[int]
    start: Start
    follow: bool
    left: int | None
    idle_timeout_s: float | None
    committed_only: bool
    line_of: Callable[[Fetched], bytes]
    printed: dict[int, int] = field(default_factory=dict)
    """The offset after the last printed record, by partition."""

    def show(self, chunk: list[Fetched]) -> None:
        if self.left is not None:
            chunk = chunk[: self.left]
            self.left -= len(chunk)
        if chunk:
            write(map(self.line_of, chunk))
            self.printed[chunk[-1].partition] = chunk[-1].record.offset + 1

    @property
    def is_over(self) -> bool:
        return self.left is not None and self.left <= 0


@app.command("consume")
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: FromOption = "beginning",
    partitions: PartitionsOption = None,
    group: GroupOption = None,
    follow: FollowOption = False,
    count: CountOption = None,
    idle_timeout_s: IdleTimeoutOption = None,
    output_format: OutputOption = LineKind.LINES,
    as_json: JsonOption = False,
    key: ShowKeyOption = False,
    headers: ShowHeadersOption = False,
    timestamp: ShowTimestampOption = False,
    offset: ShowOffsetOption = False,
    separator: SeparatorOption = "\t",
    committed_only: ReadCommittedOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Print the existing records of a topic and, with --follow, also new records.

    \b
    Example:
      moldau consume scores --key --from -10 --follow
    """
    if group is not None and partitions:
        raise typer.BadParameter("with --group the group assigns partitions: leave --partition out")
    is_json = as_json or output_format is LineKind.JSON
    lines = LineFormat(key, headers, timestamp, offset, separator.encode())
    reading = _Reading(
        topic=topic,
        partitions=partitions or [],
        start=parse_start(start),
        follow=follow or idle_timeout_s is not None,
        left=count,
        idle_timeout_s=idle_timeout_s,
        committed_only=committed_only,
        line_of=JsonFormat(topic) if is_json else lines,
    )

    async def work(client: Client) -> None:
        stopped = _stop_on_signals()
        if group is None:
            await _read_alone(client, reading, stopped)
        else:
            await _read_in_group(client, reading, group, stopped)

    with_client(bootstrap, timeout_s, work)


def _stop_on_signals() -> asyncio.Event:
    """End --follow at Ctrl-C and SIGTERM. The current work is completed and committed."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stopped.set)
    return stopped


async def _read_alone(client: Client, reading: _Reading, stopped: asyncio.Event) -> None:
    topic = await client.topic(reading.topic)
    partitions = reading.partitions or list(topic.leaders)
    positions = await find_positions(client, topic, partitions, reading.start)
    await _read(client, topic, reading, positions, [stopped])


async def _read_in_group(client: Client, reading: _Reading, group: str, stopped: asyncio.Event) -> None:
    topic = await client.topic(reading.topic)
    member = GroupMember(client, group, topic)
    try:
        while not stopped.is_set():
            assigned = await member.join()
            reading.printed.clear()
            positions = await _group_positions(client, topic, group, assigned, reading.start)
            committing = asyncio.create_task(_commit_regularly(member, reading))
            try:
                done = await _read(client, topic, reading, positions, [stopped, member.must_rejoin])
            finally:
                committing.cancel()
                await asyncio.gather(committing, return_exceptions=True)
                await member.commit(reading.printed)
            if done:
                return
    finally:
        await member.leave()


async def _group_positions(
    client: Client, topic: ClusterTopic, group: str, assigned: list[int], start: Start
) -> dict[int, int]:
    committed = (await committed_offsets(client, group)).get(topic.name, {})
    positions = {partition: committed[partition].offset for partition in assigned if partition in committed}
    fresh = [partition for partition in assigned if partition not in committed]
    if fresh:
        positions |= await find_positions(client, topic, fresh, start)
    return positions


async def _commit_regularly(member: GroupMember, reading: _Reading) -> None:
    while True:
        await asyncio.sleep(COMMIT_INTERVAL_S)
        await member.commit(dict(reading.printed))


async def _read(
    client: Client,
    topic: ClusterTopic,
    reading: _Reading,
    positions: dict[int, int],
    interruptions: list[asyncio.Event],
) -> bool:
    """Print records. Returns True when the end, the number of records or the idle time-out is reached.
    Returns False after an interruption."""
    ends = None
    if not positions and reading.follow:
        # A member without partitions waits until it gets partitions.
        await _any(interruptions)
        return False
    if not reading.follow:
        latest = await client.offsets(
            topic, dict.fromkeys(positions, LATEST), committed_only=reading.committed_only
        )
        ends = {partition: row.offset for partition, row in latest.items()}
    reader = TopicReader(client, topic, positions, ends, committed_only=reading.committed_only)
    chunks = reader.chunks()
    waits = [asyncio.create_task(event.wait()) for event in interruptions]
    try:
        while not reading.is_over:
            following = asyncio.ensure_future(anext(chunks, None))
            await asyncio.wait(
                [following, *waits], timeout=reading.idle_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                return not any(event.is_set() for event in interruptions)
            chunk = following.result()
            if chunk is None:
                return True
            reading.show(chunk)
        return True
    finally:
        for wait in waits:
            wait.cancel()
        await chunks.aclose()


async def _any(events: list[asyncio.Event]) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
