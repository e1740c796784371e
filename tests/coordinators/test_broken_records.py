"""Coordinators skip unreadable records if that is safe. Otherwise they stop, and report the record."""

import asyncio
import logging
import struct
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from memory_coordinator_log import MemoryLog
from moldau.cluster.internal_topics import CONSUMER_OFFSETS, DISKLESS_METADATA
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.state.records import PartitionCreated
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.groups.codec import ConsumerOffsetsCodec
from moldau.coordinators.groups.records import CommittedOffset, GroupRecord, OffsetRecord
from moldau.coordinators.groups.settings import GroupSettings
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.groups.tally import GroupTally
from moldau.coordinators.kind import CoordinatorKind, LogPolicy
from moldau.coordinators.loader import ShardLoader
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.records import Record, build_batch
from moldau.records.batch import parse_header
from moldau.records.control import LeaderChange, build_control_batch, build_end_transaction_marker
from moldau.simulation.world.world import World

Pair = tuple[bytes | None, bytes | None]
OFFSETS, DISKLESS = ConsumerOffsetsCodec(), DisklessCodec()
KEY, VALUE = OFFSETS.encode(OffsetRecord("planted", "topic", 0, CommittedOffset(7, -1, "", 0)))
GROUP_KEY, _ = OFFSETS.encode(GroupRecord("planted", None))
assert KEY is not None
assert VALUE is not None
assert GROUP_KEY is not None

BROKEN: dict[str, Pair] = {
    "no key": (None, VALUE),
    "an empty key": (b"", VALUE),
    "a key shorter than its version": (b"\x00", VALUE),
    "a key that ends early": (KEY[:-2], VALUE),
    "a key with a rest": (KEY + b"x", VALUE),
    "a key that is no text": (KEY[:4] + b"\xff" * (len(KEY) - 4), VALUE),
    "a value that ends early": (KEY, VALUE[:-3]),
    "an empty value": (KEY, b""),
    "a value shorter than its version": (KEY, b"\x00"),
    "a value of an unknown version": (KEY, b"\x00\x63" + VALUE[2:]),
    "a group that ends early": (GROUP_KEY, b"\x00\x03\x00\x09con"),
    "a group with members without end": (GROUP_KEY, b"\x00\x03\x00\x00" + b"\x7f" * 30),
}
UNKNOWN: dict[str, Pair] = {
    "a type of a later version": (b"\x03\xe7\x00\x00", b"\x00\x00"),
    "a negative type": (b"\xff\xff\x00\x00", b"\x00\x00"),
}
TOMBSTONES: dict[str, Pair] = {"of an offset": (KEY, None), "of a group": (GROUP_KEY, None)}


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def batch_of(*pairs: Pair) -> bytearray:
    return bytearray(build_batch([Record(n, 1_000, key, value) for n, (key, value) in enumerate(pairs)]))


def offset_of(group: str, offset: int) -> Pair:
    return OFFSETS.encode(OffsetRecord(group, "topic", 0, CommittedOffset(offset, -1, "", 0)))


def damaged(*pairs: Pair) -> bytearray:
    """A batch with a changed byte in its records, so that its CRC is wrong."""
    batch = batch_of(*pairs)
    batch[-2] ^= 0xFF
    return batch


class Loaded(NamedTuple):
    """The state of a runtime one second after it began to load a log."""

    shards: list[Any]
    problem: str | None
    notice: str | None


def load(runtime: CoordinatorRuntime[Any, Any], log: MemoryLog) -> Loaded:
    async def main() -> Loaded:
        runtime.load(0, 1, log)
        await asyncio.sleep(1)
        loaded = Loaded(runtime.shards(), runtime.problem(), runtime.notice())
        await runtime.close()
        return loaded

    with World(1) as world:
        return world.run(main())


def load_groups(*batches: bytearray) -> Loaded:
    log = MemoryLog()
    for batch in batches:
        log.append(batch)
    settings = GroupSettings()
    return load(
        CoordinatorRuntime(
            CoordinatorKind(
                topic=CONSUMER_OFFSETS,
                new_shard=lambda partition: GroupShard(settings, GroupTally()),
                codec=OFFSETS,
                run_replay=GroupShard.run_replay,
                policy=LogPolicy(skips_broken=True),
            ),
            FixedClock(),
        ),
        log,
    )


def load_diskless(*batches: bytearray) -> Loaded:
    log = MemoryLog()
    for batch in batches:
        log.append(batch)
    return load(
        CoordinatorRuntime(
            CoordinatorKind(
                topic=DISKLESS_METADATA, new_shard=lambda partition: DisklessShard(), codec=DISKLESS
            ),
            FixedClock(),
        ),
        log,
    )


def offsets_in(loaded: Loaded) -> dict[str, int]:
    (shard,) = loaded.shards
    found = {group: shard.offsets.store.get(group, "topic", 0) for group in ("before", "beside", "behind")}
    return {group: committed.offset for group, committed in found.items() if committed is not None}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_record_is_skipped_and_reported(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_groups(
        batch_of(offset_of("before", 1)),
        batch_of(BROKEN[kind], offset_of("beside", 2)),
        batch_of(offset_of("behind", 3)),
    )
    assert offsets_in(loaded) == {"before": 1, "beside": 2, "behind": 3}
    assert loaded.problem is None
    assert loaded.notice == "__consumer_offsets-0: 1 broken records were skipped, the first at offset 1"
    assert "__consumer_offsets-0 has a broken record at offset 1" in caplog.text


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_record_of_an_unknown_type_is_skipped_with_a_warning(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_groups(batch_of(UNKNOWN[kind], offset_of("beside", 2)))
    assert offsets_in(loaded) == {"beside": 2}
    assert (loaded.problem, loaded.notice) == (None, None)
    assert "1 records of types that are not known were skipped" in caplog.text


@pytest.mark.parametrize("kind", TOMBSTONES)
def test_a_tombstone_of_an_unknown_key_is_accepted(kind: str) -> None:
    loaded = load_groups(batch_of(TOMBSTONES[kind], offset_of("beside", 2)))
    assert offsets_in(loaded) == {"beside": 2}
    assert (loaded.problem, loaded.notice) == (None, None)


def test_a_batch_with_a_wrong_checksum_is_skipped_whole() -> None:
    loaded = load_groups(
        batch_of(offset_of("before", 1)),
        damaged(offset_of("beside", 2), offset_of("beside", 3)),
        batch_of(offset_of("behind", 3)),
    )
    assert offsets_in(loaded) == {"before": 1, "behind": 3}
    assert loaded.notice == "__consumer_offsets-0: 1 broken records were skipped, the first at offset 1"


def test_a_batch_with_too_few_records_is_replayed_up_to_its_end() -> None:
    batch = batch_of(offset_of("beside", 2))
    header = parse_header(batch)
    struct.pack_into(">i", batch, 57, header.records_count + 1)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    loaded = load_groups(batch_of(offset_of("before", 1)), batch, batch_of(offset_of("behind", 3)))
    assert offsets_in(loaded) == {"before": 1, "beside": 2, "behind": 3}
    assert loaded.notice is not None


def test_control_batches_are_no_records() -> None:
    loaded = load_groups(
        bytearray(build_control_batch([LeaderChange(1)], timestamp=0)),
        bytearray(build_end_transaction_marker(7, 0, committed=True, coordinator_epoch=1, timestamp=0)),
        batch_of(offset_of("behind", 3)),
    )
    assert offsets_in(loaded) == {"behind": 3}
    assert (loaded.problem, loaded.notice) == (None, None)


@given(st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_no_record_closes_the_coordinator_of_groups(key: bytes | None, value: bytes | None) -> None:
    log = MemoryLog()
    log.append(batch_of((key, value), offset_of("beside", 2)))
    log.append(batch_of(offset_of("behind", 3)))
    shard = GroupShard(GroupSettings(), GroupTally())
    loader = ShardLoader(shard, OFFSETS, log, policy=LogPolicy(skips_broken=True))
    assert asyncio.run(loader.run(0)) == 3
    assert offsets_in(Loaded([shard], None, None)) == {"beside": 2, "behind": 3}


CREATED = DISKLESS.encode(PartitionCreated(UUID(int=1), "topic", 0))
BROKEN_METADATA: dict[str, Pair] = {
    "no key": (None, CREATED[1]),
    "no value": (CREATED[0], None),
    "a type of a later version": (b"\x03\xe7\x00\x00", b"\x00\x00"),
    "an empty key": (b"", CREATED[1]),
    "a value that ends early": (CREATED[0], (CREATED[1] or b"")[:-3]),
    "a value of an unknown version": (CREATED[0], b"\x00\x63" + (CREATED[1] or b"")[2:]),
}


@pytest.mark.parametrize("kind", BROKEN_METADATA)
def test_a_diskless_coordinator_stops_at_a_broken_record_and_names_it(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_diskless(batch_of(CREATED), batch_of(BROKEN_METADATA[kind]), batch_of(CREATED))
    assert loaded.shards == []
    assert loaded.problem is not None
    assert "__diskless_metadata-0 has a broken record at offset 1" in loaded.problem
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1, "the reason is said once, however often the load is tried again"
    assert "cannot be loaded" in errors[0]


def test_a_diskless_coordinator_stops_at_a_wrong_checksum() -> None:
    loaded = load_diskless(batch_of(CREATED), damaged(CREATED))
    assert loaded.shards == []
    assert loaded.problem is not None
    assert "computed" in loaded.problem


def test_a_diskless_coordinator_passes_over_control_batches() -> None:
    loaded = load_diskless(bytearray(build_control_batch([LeaderChange(1)], timestamp=0)), batch_of(CREATED))
    assert len(loaded.shards) == 1
    assert loaded.problem is None


@pytest.mark.parametrize("in_runs", [False, True])
def test_a_batch_of_many_records_is_replayed_in_turns(in_runs: bool) -> None:
    """The event loop runs other tasks while a batch is replayed, even if the batch has many records."""
    log = MemoryLog()
    log.append(batch_of(*(offset_of(f"group-{number}", number) for number in range(5_000))))
    shard = GroupShard(GroupSettings(), GroupTally())
    loader = ShardLoader(
        shard,
        OFFSETS,
        log,
        policy=LogPolicy(skips_broken=True),
        runs=shard.run_replay() if in_runs else None,
    )
    replayed = []

    async def watch() -> None:
        while True:
            replayed.append(loader.records_replayed)
            await asyncio.sleep(0)

    async def load() -> None:
        watching = asyncio.ensure_future(watch())
        await loader.run(0)
        watching.cancel()

    asyncio.run(load())
    assert loader.records_replayed == 5_000
    assert {1_000, 2_000, 3_000, 4_000} <= set(replayed)
