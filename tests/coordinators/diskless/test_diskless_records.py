"""Columns and records. Reading returns the values that were written, and the encoding is small."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from diskless_house import batch, file
from hypothesis import given
from hypothesis import strategies as st
from kip_form_writer import encode_kip_file

from moldau.coordinators.diskless.calls import BatchToCommit, CommitFileCall, CommittedBatch
from moldau.coordinators.diskless.codecs.batch_columns import (
    decode_batches,
    decode_results,
    encode_batches,
    encode_results,
)
from moldau.coordinators.diskless.codecs.codec import DisklessCodec
from moldau.coordinators.diskless.codecs.columns import ColumnError, ColumnReader, put_column
from moldau.coordinators.diskless.codecs.kip_form import decode_kip_file
from moldau.coordinators.diskless.state import commit, records, replay
from moldau.coordinators.diskless.state.commit import DecidedFile, decide_file
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.plain_files import BatchColumns, accept_plain_file
from moldau.coordinators.diskless.state.producers import extended, last_sequence, opened
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.diskless.store.snapshot_format import decode_rows, encode_rows
from moldau.coordinators.effects import PLAIN, Token
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import diskless as wire
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode

INT64 = st.integers(-(2**63), 2**63 - 1)
UUIDS = st.builds(UUID, int=st.integers(0, 2**128 - 1))
ERRORS = st.sampled_from([ErrorCode.none, ErrorCode.invalid_record, ErrorCode.out_of_order_sequence_number])


@given(st.lists(INT64) | st.lists(st.integers(0, 300)))
def test_decoded_columns_equal_the_encoded_columns(values: list[int]) -> None:
    out = bytearray()
    put_column(out, values)
    reader = ColumnReader(out)
    assert reader.column(len(values)) == values
    reader.end()


@given(st.binary(max_size=30), st.integers(0, 20))
def test_broken_columns_are_refused(content: bytes, count: int) -> None:
    reader = ColumnReader(content)
    with contextlib.suppress(ColumnError):
        assert len(reader.column(count)) == count


def partitions_of(*ids: PartitionKey) -> PartitionTable:
    table = PartitionTable()
    for number, found in enumerate(ids):
        table.add(PartitionState(number, found, "t"))
    return table


@st.composite
def files(draw: st.DrawFn) -> records.FileCommitted:
    ids = draw(
        st.lists(st.builds(PartitionKey, UUIDS, st.integers(0, 9)), min_size=1, max_size=4, unique=True)
    )
    table = partitions_of(*ids[: draw(st.integers(0, len(ids)))])
    batches = draw(
        st.lists(
            st.builds(
                lambda at, records, size, time, append, producer: batch(
                    at.partition, records, topic=at.topic_id, size=size, time=time,
                    append_time=append, producer=producer,
                ),
                st.sampled_from(ids),
                st.integers(1, 100),
                st.integers(1, 1 << 20),
                st.integers(-1, 1 << 45),
                st.booleans(),
                st.none() | st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**31 - 1)),
            ),
            max_size=12,
        )
    )  # fmt: skip
    return decide_file(table, file("key", *batches, owners=(2, 0)), 123456).record


@given(files())
def test_a_decoded_file_committed_record_equals_the_encoded_record(record: records.FileCommitted) -> None:
    codec = DisklessCodec()
    assert codec.decode(*codec.encode(record)) == record


@given(files())
def test_a_record_in_the_form_of_the_kip_is_decoded(record: records.FileCommitted) -> None:
    value = wire.RECORDS.decode_value(wire.DisklessFileCommittedKey(), encode_kip_file(record))
    assert isinstance(value, wire.DisklessFileCommittedRecord)
    again = decode_kip_file(value)
    assert sum(again.sizes_bytes) == sum(record.sizes_bytes)
    assert {run[:2] for run in again.runs} == {run[:2] for run in record.runs}


@pytest.mark.parametrize(
    "record",
    [
        records.PartitionCreated(UUID(int=1), "name", 3),
        records.TransactionsEnded(5, (records.MarkerExtent(UUID(int=9), 3, 77, 1000, 4, 2, True),)),
        records.TransactionsEnded(5, (records.MarkerExtent(UUID(int=9), 3, 77, 8, 4, 2, True, 6, 1 << 40),)),
        records.TopicDeleted(UUID(int=1)),
        records.RecordsDeleted(UUID(int=1), 3, 1 << 40),
        records.FilesClosed(17, ("a", "b")),
        records.FileTakenOver("a", 10, 20, 30, (1, 2)),
        records.FilesReleased(("a",)),
        records.Pruned(UUID(int=1), 2, 3, 4, 5, 6),
    ],
)
def test_other_decoded_records_equal_the_encoded_records(record: records.DisklessRecord) -> None:
    codec = DisklessCodec()
    assert codec.decode(*codec.encode(record)) == record


@pytest.mark.parametrize("pair", [(b"\x03\xe7", b"\x00\x00"), (None, b"x"), (b"\x00\x00", None), (b"", b"")])
def test_unknown_records_are_refused(pair: tuple[bytes | None, bytes | None]) -> None:
    with pytest.raises(ProtocolError):
        DisklessCodec().decode(*pair)


@st.composite
def histories(draw: st.DrawFn) -> list[CommitFileCall]:
    """Files of a few producers with mostly consecutive sequences. The files have batches of several
    partitions, one of which does not exist."""
    follows: dict[tuple[int, int], int] = {}
    calls = []
    for number in range(draw(st.integers(1, 5))):
        batches = []
        for _ in range(draw(st.integers(1, 14))):
            index, count = draw(st.integers(0, 2)), draw(st.integers(1, 5))
            producer = draw(st.sampled_from((None, 0, 1)))
            identity = None
            if producer is not None:
                step = draw(st.sampled_from((0, 0, 0, 0, 0, 1, -1)))
                sequence = max(0, follows.get((index, producer), 0) + step)
                identity = (producer, draw(st.sampled_from((0, 0, 0, 0, 1))), sequence)
                follows[index, producer] = sequence + count
            append_time = draw(st.sampled_from((False, False, False, True)))
            batches.append(batch(index, count, topic=UUID(int=1), append_time=append_time, producer=identity))
        calls.append(file(f"key-{number}", *batches))
    return calls


def decided_by_the_rule(partitions: PartitionTable, call: CommitFileCall, now_ms: int) -> DecidedFile:
    """The decision of the rule, which checks each batch separately."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit, "accept_plain_file", lambda *file: None)
        patched.setattr(BatchColumns, "are_valid", lambda columns, file_bytes: False)
        return decide_file(partitions, call, now_ms)


@given(histories())
def test_decisions_by_columns_equal_decisions_batch_by_batch(calls: list[CommitFileCall]) -> None:
    ids = [PartitionKey(UUID(int=1), 0), PartitionKey(UUID(int=1), 1)]
    by_columns, one_by_one = partitions_of(*ids), partitions_of(*ids)
    for now_ms, call in enumerate(calls):
        record, changes = decide_file(by_columns, call, now_ms)
        expected, expected_changes = decided_by_the_rule(one_by_one, call, now_ms)
        assert record == expected
        answers = [commit.result_of(each, now_ms, by_columns) for each in (record, expected)]
        assert answers[0] == answers[1]
        assert len(answers[0].batches) == len(call.batches)
        replay.replay_file(by_columns, record, changes)
        replay.replay_file(one_by_one, expected, expected_changes)
        assert [found.producers for found in by_columns] == [found.producers for found in one_by_one]


def steady_file(number: int, first_sequence: int = 0) -> CommitFileCall:
    """The next batch of each of two producers in each of two partitions."""
    sequence = (first_sequence + 3 * number) % 2**31
    batches = [
        batch(index, 3, topic=UUID(int=1), producer=(producer, 0, sequence))
        for index in (0, 1)
        for producer in (7, 8)
    ]
    return file(f"key-{number}", *batches)


ODDITIES: dict[str, Callable[[BatchToCommit], BatchToCommit]] = {
    "none": lambda found: found,
    "gap": lambda found: found._replace(base_sequence=found.base_sequence + 1),
    "again": lambda found: found._replace(base_sequence=(found.base_sequence - 3) % 2**31),
    "bump": lambda found: found._replace(producer_epoch=1, base_sequence=0),
    "epoch": lambda found: found._replace(producer_epoch=1),
    "stale": lambda found: found._replace(producer_epoch=-1),
    "unknown producer": lambda found: found._replace(producer_id=9),
    "the other producer": lambda found: found._replace(producer_id=15 - found.producer_id),
    "no producer": lambda found: found._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1),
    "the other partition": lambda found: found._replace(partition_index=1 - found.partition_index),
    "unknown partition": lambda found: found._replace(partition_index=5),
    "append time": lambda found: found._replace(timestamp_type=1),
    "no size": lambda found: found._replace(size_bytes=0),
}


def check_ways_to_decide(first_sequence: int, files: int, oddities: Sequence[tuple[int, str]]) -> None:
    """Check that three methods result in the same state: a decision by columns, a decision batch by batch,
    and a replay of the log. The states are compared after each of ``files`` ordinary files, and after each of
    two unusual files."""
    ids = [PartitionKey(UUID(int=1), 0), PartitionKey(UUID(int=1), 1)]
    at_once, one_by_one, replayed = (partitions_of(*ids) for _ in range(3))
    for number in range(files + 2):
        call = steady_file(number, first_sequence)
        if number >= files:
            odd = list(call.batches)
            for at, name in oddities:
                odd[at] = ODDITIES[name](odd[at])
            call = replace(call, batches=odd)
        record, changes = decide_file(at_once, call, number)
        expected, expected_changes = decided_by_the_rule(one_by_one, call, number)
        assert record == expected
        codec = DisklessCodec()
        from_log = codec.decode(*codec.encode(record))
        assert isinstance(from_log, records.FileCommitted)
        decisions = (
            (at_once, record, changes),
            (one_by_one, expected, expected_changes),
            (replayed, from_log, None),
        )
        moves = [
            [(moved.partition.number, *moved[1:]) for moved in replay.replay_file(*decision)]
            for decision in decisions
        ]
        assert moves[0] == moves[1] == moves[2]
        states = [[(found.next, found.producers) for found in table] for table, *_ in decisions]
        assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("name", ODDITIES)
def test_one_unusual_batch_is_detected_in_a_file_that_is_decided_by_columns(name: str) -> None:
    for at in range(4):
        check_ways_to_decide(0, 5, [(at, name)])


@given(
    st.sampled_from((0, 2**31 - 20, 2**31 - 18)),
    st.integers(3, 7),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(ODDITIES))), max_size=3),
)
def test_both_kinds_of_decisions_and_the_replay_of_the_record_lead_to_the_same_state(
    first_sequence: int, files: int, oddities: list[tuple[int, str]]
) -> None:
    check_ways_to_decide(first_sequence, files, oddities)


def test_a_file_with_only_consecutive_sequences_is_decided_by_columns() -> None:
    table = partitions_of(PartitionKey(UUID(int=1), 0), PartitionKey(UUID(int=1), 1))
    for number in range(5):
        replay.replay_file(table, *decide_file(table, steady_file(number), number))
    outcome = accept_plain_file(table, BatchColumns(steady_file(5).batches), 5)
    assert outcome is not None
    assert [run.batches for run in outcome.runs] == [2, 2]
    assert not outcome.rejected


def test_a_record_is_not_replayed_with_the_changes_of_another_decision() -> None:
    ours, theirs = DisklessShard(), DisklessShard()
    for shard in (ours, theirs):
        shard.replay(0, records.PartitionCreated(UUID(int=1), "t", 0), PLAIN)
    small, large = (file("key", batch(0, count, topic=UUID(int=1), producer=(7, 0, 0))) for count in (3, 9))
    ours.commit_file(small, 1_000_000, Token(0))
    (record,) = theirs.commit_file(large, 1_000_000, Token(0)).records
    for shard in (ours, theirs):
        shard.replay(1, record, PLAIN)
    (mine,), (other,) = ours.partitions, theirs.partitions
    assert (mine.next, mine.producers) == (9, other.producers)


def test_a_window_keeps_the_last_five_batches() -> None:
    table = partitions_of(PartitionKey(UUID(int=1), 0))
    for number in range(8):
        call = file(f"key-{number}", batch(0, 3, topic=UUID(int=1), producer=(7, 0, 3 * number)))
        replay.replay_file(table, *decide_file(table, call, number))
    (partition,) = table
    assert {producer: opened(window) for producer, window in partition.producers.items()} == {
        7: (0, 7, tuple((3 * number, 3 * number + 2, 3 * number, -1) for number in range(3, 8)))
    }


def typical_file() -> tuple[PartitionTable, CommitFileCall]:
    """500 batches over 50 partitions and 10 producers, with random sizes and counts."""
    topics = [UUID(int=(77 << 64) + number) for number in range(5)]
    ids = [PartitionKey(topics[number % 5], number // 5) for number in range(50)]
    table = partitions_of(*sorted(ids))
    batches, end, seed, call_ms = [], 0, 1, 1_763_000_000_000
    for partition_id in sorted(ids):
        state = table.find(*partition_id)
        assert state is not None
        state.next = 1_000_000_007 * (partition_id.partition + 1)
        for producer in range(10):
            seed = seed * 1103515245 + 12345 & 0x7FFFFFFF
            count, size = 1 + seed % 700, 500 + seed % 900_000
            state.producers[4_000_000 + producer] = extended(None, 3, 0, (seed - 1, seed - 1, 0, -1))
            batches.append(
                BatchToCommit(*partition_id, producer, end, size, count - 1, count, call_ms + seed % 250, 0,
                              4_000_000 + producer, 3, seed, last_sequence(seed, count - 1))
            )  # fmt: skip
            end += size
    key = "wal/2026/11/20/0000000000012345-6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    return table, CommitFileCall(key, end, 1_763_000_000_000, 1, batches, (0, 4))


def test_a_batch_takes_at_most_16_bytes_in_the_log() -> None:
    table, call = typical_file()
    record = decide_file(table, call, 1_763_000_000_400).record
    assert len(record.sizes_bytes) == 500
    key, value = DisklessCodec().encode(record)
    in_log = len(build_batch([Record(0, 0, key, value, ())])) / 500
    in_kips_form = len(build_batch([Record(0, 0, key, encode_kip_file(record), ())])) / 500
    print(f"{in_log:.2f} bytes a batch; {in_kips_form:.2f} in KIP-1164's form")
    assert in_log <= 16
    assert in_kips_form > 60
    assert len(encode_batches(call.batches)) / 500 <= 16
    assert len(record.receipt) / 500 <= 5


BATCHES = st.builds(
    BatchToCommit,
    UUIDS,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    *[st.integers(0, 2**32)] * 2,
    *[st.integers(0, 2**31 - 1)] * 2,
    st.integers(-1, 2**62),
    st.integers(0, 1),
    st.integers(-1, 2**62),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
    st.integers(0, 2**48),
)


@given(st.lists(BATCHES, max_size=8))
def test_decoded_request_columns_equal_the_encoded_columns(batches: list[BatchToCommit]) -> None:
    assert decode_batches(encode_batches(batches)) == batches


@given(
    st.lists(
        st.builds(CommittedBatch, ERRORS, INT64, INT64, INT64, st.none() | st.text(max_size=5), st.booleans())
    )
)
def test_decoded_response_columns_equal_the_encoded_columns(results: list[CommittedBatch]) -> None:
    assert decode_results(encode_results(results)) == results


@given(st.lists(st.tuples(INT64, st.binary(max_size=9), st.text(max_size=5)), min_size=1))
def test_decoded_snapshot_rows_equal_the_encoded_rows(rows: list[tuple[int, bytes, str]]) -> None:
    assert decode_rows(encode_rows(3, rows)) == (3, rows)
