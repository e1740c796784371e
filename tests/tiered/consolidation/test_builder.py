"""A segment that the builder makes is equal, byte for byte, to the segment of a log with the same batches."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wal_batches import Sent, wal_batches, write_log

from moldau.records.errors import CorruptRecordError
from moldau.storage.folders.file_names import (
    OFFSET_INDEX_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file,
)
from moldau.storage.producers.producer_snapshot import decode_producer_snapshot
from moldau.tiered.storage.segment_builder import BatchRun, BuiltSegment, build_segment, finish_segment

NOW_MS = 1_700_000_000_000

sent = st.builds(
    Sent,
    records=st.integers(1, 4),
    producer=st.sampled_from([-1, -1, 5, 9]),
    timestamp_ms=st.integers(NOW_MS - 50, NOW_MS + 50),
    append_time_ms=st.one_of(st.just(-1), st.integers(NOW_MS, NOW_MS + 100)),
    codec=st.integers(0, 4),
    size=st.sampled_from([0, 30, 400]),
)
transaction = st.tuples(sent, st.booleans()).map(
    lambda pair: [
        Sent(producer=77, transactional=True, timestamp_ms=pair[0].timestamp_ms),
        pair[0],
        Sent(producer=77, marker=pair[1], timestamp_ms=pair[0].timestamp_ms),
    ]
)
histories = st.lists(st.one_of(sent.map(lambda one: [one]), transaction), min_size=1, max_size=30).map(
    lambda lists: [one for some in lists for one in some]
)


def files_of(folder: Path, first_offset: int) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    end = max(int(name.split(".")[0]) for name in found if name.endswith(".log"))
    name = segment_file(first_offset, "")
    return {
        "log": found[f"{name}.log"],
        "offset_index": found[name + OFFSET_INDEX_SUFFIX],
        "time_index": found[name + TIME_INDEX_SUFFIX],
        "transaction_index": found.get(name + TRANSACTION_INDEX_SUFFIX, b""),
        "leader_epoch_checkpoint": found["leader-epoch-checkpoint"],
        "producer_snapshot": found[segment_file(end, PRODUCER_SNAPSHOT_SUFFIX)],
    }


def files_in(built: BuiltSegment) -> dict[str, bytes]:
    names = ["log", "offset_index", "time_index", "transaction_index", "leader_epoch_checkpoint"]
    return {name: bytes(getattr(built, name)) for name in [*names, "producer_snapshot"]}


@settings(max_examples=40)
@given(histories, st.sampled_from([0, 17, 2**33]), st.sampled_from([0, 200, 4096]), st.booleans())
def test_a_built_segment_equals_the_segment_of_a_log(
    history: list[Sent], first_offset: int, interval: int, reuse: bool
) -> None:
    parts = wal_batches(history, first_offset)
    used = bytearray(b"\xff" * (sum(run.size_bytes for run, _ in parts) + 100)) if reuse else None
    built = build_segment(parts, index_interval_bytes=interval, into=used)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "t-0"
        write_log(parts, folder, interval)
        expected = files_of(folder, first_offset)
    found = files_in(built)
    # Only the last batch of each producer is compared, because the builder records only this batch. The order
    # of the producers in a snapshot is not compared, because it may differ.
    built_producers, producers = (
        sorted(decode_producer_snapshot(files.pop("producer_snapshot")), key=lambda entry: entry.producer_id)
        for files in (found, expected)
    )
    for producer in producers:
        while len(producer.batches) > 1:
            producer.batches.popleft()
    assert built_producers == producers
    assert found == expected
    assert (built.base_offset, built.end_offset) == (first_offset, parts[-1][0].last_offset)
    assert built.batches == len(parts)
    assert built.records == built.end_offset - built.base_offset + 1


@given(histories, st.data())
@settings(max_examples=30)
def test_how_batches_are_cut_into_runs_changes_nothing(history: list[Sent], data: st.DataObject) -> None:
    parts = wal_batches(history)
    joined: list[tuple[BatchRun, bytes]] = []
    for run, content in parts:
        before = joined[-1] if joined else None
        if before and before[0].append_time_ms == run.append_time_ms and data.draw(st.booleans()):
            whole = before[1] + content
            joined[-1] = (
                BatchRun(before[0].base_offset, run.last_offset, len(whole), run.append_time_ms),
                whole,
            )
        else:
            joined.append((run, content))
    assert files_in(build_segment(joined)) == files_in(build_segment(parts))


def test_an_abort_of_a_transaction_from_the_segment_before_is_indexed() -> None:
    open_part = wal_batches([Sent(producer=3, transactional=True), Sent()])
    before = build_segment(open_part)
    assert before.transaction_index == b""
    marker = wal_batches([Sent(producer=3, marker=False)], first_offset=2)
    alone = build_segment(marker)
    assert alone.transaction_index == b""
    built = build_segment(marker, producers_before=before.producer_snapshot)
    assert len(built.transaction_index) == 34
    assert int.from_bytes(built.transaction_index[10:18], "big") == 0


@pytest.mark.parametrize(
    ("position", "reason"),
    [(0, None), (11, "no batch"), (16, "no batch"), (30, "stored CRC"), (-1, "stored CRC")],
)
def test_each_kind_of_damage_is_refused(position: int, reason: str | None) -> None:
    (run, content), *_ = wal_batches([Sent()])
    damaged = bytearray(content)
    damaged[position] ^= 0x41
    if reason is None:  # the builder always overwrites the base offset
        assert bytes(build_segment([(run, damaged)]).log) == bytes(build_segment([(run, content)]).log)
    else:
        with pytest.raises(CorruptRecordError, match=reason):
            build_segment([(run, damaged)])


def test_batches_that_do_not_follow_each_other_are_refused() -> None:
    first, second, third = wal_batches([Sent(), Sent(records=3), Sent()])
    with pytest.raises(CorruptRecordError, match="do not follow"):
        build_segment([first, third])
    with pytest.raises(CorruptRecordError, match="bytes came"):
        build_segment([(first[0], first[1][:-1])])
    with pytest.raises(CorruptRecordError, match="end with offset"):
        build_segment([first, (second[0]._replace(last_offset=2), second[1])])
    with pytest.raises(CorruptRecordError, match="after the last batch"):
        finish_segment(memoryview(bytearray(first[1] + b"x")), [first[0]])
    with pytest.raises(CorruptRecordError, match="not all are there"):
        finish_segment(memoryview(bytearray(first[1][:-1])), [first[0]])
    with pytest.raises(ValueError, match="at least one"):
        build_segment([])
    with pytest.raises(ValueError, match="more than a segment holds"):
        build_segment([first, (second[0]._replace(last_offset=2**31), second[1])])
