"""Idempotence and transactions of one partition, by Kafka's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import BatchHeader, InvalidRecordError, Record, build_batch, parse_header
from moldau.records.control import EndTransactionMarker, build_end_transaction_marker
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.producers.producer_state import BatchMetadata, CompletedTransaction, ProducerState

DAY_MS = 86_400_000
SEQUENCE_MAX = 2**31 - 1


def batch(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 1, transactional: bool = False
) -> BatchHeader:
    return parse_header(
        build_batch(
            [Record(0, 100, None, b"")] * count,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )


class Partition:
    """A log whose producer state is real. All other parts are fake."""

    def __init__(self, state: ProducerState | None = None) -> None:
        self.state = ProducerState(expiration_ms=DAY_MS) if state is None else state

    def produce(
        self, header: BatchHeader, timestamp: int = 100, *, from_client: bool = True
    ) -> BatchMetadata | None:
        duplicate = self.state.check(header, from_client=from_client)
        if duplicate is None:
            self.state.apply(header, self.state.end_offset, timestamp)
        return duplicate

    def refusal(self, header: BatchHeader, *, from_client: bool = True) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            self.produce(header, from_client=from_client)
        return caught.value.code

    def end(
        self, producer: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0
    ) -> CompletedTransaction | None:
        marker = EndTransactionMarker(committed, coordinator_epoch)
        self.state.check_marker(producer, epoch, marker)
        return self.state.apply_marker(producer, epoch, marker, self.state.end_offset, 200)


def test_sequences_follow_each_other() -> None:
    partition = Partition()
    for sequence in range(0, 30, 3):
        assert partition.produce(batch(sequence, 3)) is None
    assert partition.state.end_offset == 30
    assert partition.refusal(batch(33, 3)) is ErrorCode.out_of_order_sequence_number


def test_each_of_the_last_five_batches_is_a_duplicate_with_its_original_offset_and_time() -> None:
    partition = Partition()
    for index in range(7):
        partition.produce(batch(2 * index, 2), timestamp=1_000 + index)
    for index in range(2, 7):
        duplicate = partition.produce(batch(2 * index, 2))
        assert duplicate == BatchMetadata(2 * index + 1, 2 * index + 1, 1, 1_000 + index)
        assert (duplicate.first_offset, duplicate.first_sequence) == (2 * index, 2 * index)
    assert partition.state.end_offset == 14
    assert partition.refusal(batch(2, 2)) is ErrorCode.out_of_order_sequence_number


def test_an_overlap_is_no_duplicate() -> None:
    partition = Partition()
    partition.produce(batch(0, 4))
    assert partition.refusal(batch(0, 3)) is ErrorCode.out_of_order_sequence_number
    assert partition.refusal(batch(1, 3)) is ErrorCode.out_of_order_sequence_number


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    partition = Partition()
    partition.produce(batch(0, 2))
    assert partition.refusal(batch(2, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert partition.produce(batch(0, 2, epoch=1)) is None
    assert partition.refusal(batch(2, epoch=0)) is ErrorCode.invalid_producer_epoch
    assert partition.produce(batch(2, epoch=1)) is None


def test_a_batch_of_a_new_epoch_is_never_a_duplicate_of_an_old_one() -> None:
    partition = Partition()
    partition.produce(batch(0))
    assert partition.produce(batch(0, epoch=1)) is None
    assert partition.state.end_offset == 2
    assert partition.refusal(batch(0, epoch=0)) is ErrorCode.invalid_producer_epoch


def test_an_unknown_producer_may_start_anywhere() -> None:
    partition = Partition()
    assert partition.produce(batch(41, 2, epoch=7)) is None
    assert partition.produce(batch(43, epoch=7)) is None


def test_sequences_wrap_to_zero_and_duplicates_are_found_across_the_wrap() -> None:
    partition = Partition()
    partition.produce(batch(SEQUENCE_MAX - 1, 1))
    partition.produce(batch(SEQUENCE_MAX, 3))
    duplicate = partition.produce(batch(SEQUENCE_MAX, 3))
    assert duplicate is not None
    assert (duplicate.first_sequence, duplicate.last_sequence, duplicate.first_offset) == (SEQUENCE_MAX, 1, 1)
    assert partition.produce(batch(2)) is None


def test_after_a_wrap_at_the_end_the_next_sequence_is_zero() -> None:
    partition = Partition()
    partition.produce(batch(SEQUENCE_MAX))
    assert partition.refusal(batch(1)) is ErrorCode.out_of_order_sequence_number
    assert partition.produce(batch(0)) is None


def test_a_coordinators_batches_carry_no_sequence_but_are_fenced() -> None:
    partition = Partition()
    for _ in range(2):
        partition.produce(batch(-1, epoch=3, transactional=True), from_client=False)
    stale = batch(-1, epoch=2, transactional=True)
    assert partition.refusal(stale, from_client=False) is ErrorCode.invalid_producer_epoch


def test_quiet_producers_expire_unless_a_transaction_is_open() -> None:
    partition = Partition()
    partition.produce(batch(0, producer=1), timestamp=1_000)
    partition.produce(batch(0, producer=2, transactional=True), timestamp=1_000)
    assert partition.state.remove_expired(1_000 + DAY_MS - 1) == 0
    assert partition.state.remove_expired(1_000 + DAY_MS) == 1
    assert [entry.producer_id for entry in partition.state] == [2]
    assert partition.produce(batch(99, producer=1)) is None


def test_a_producer_whose_records_carry_no_time_is_remembered_over_a_restart_and_then_expires() -> None:
    partition = Partition()
    partition.produce(batch(0, 20), timestamp=-1)
    started_ms = 50 * DAY_MS
    restarted = Partition(ProducerState(expiration_ms=DAY_MS))
    restarted.state.reset(20, list(partition.state), started_ms)
    assert restarted.produce(batch(0, 20), timestamp=-1) == BatchMetadata(19, 19, 19, -1)
    assert restarted.state.remove_expired(started_ms + DAY_MS - 1) == 0
    assert restarted.state.remove_expired(started_ms + DAY_MS) == 1


def test_a_transaction_holds_the_stable_offset_until_its_marker_is_replicated() -> None:
    partition = Partition()
    state = partition.state
    partition.produce(batch(0, 5))
    partition.produce(batch(0, 2, producer=2, transactional=True))
    partition.produce(batch(2, 2, producer=2, transactional=True))
    assert state.first_unstable_offset == 5
    assert partition.end(2, committed=True) == CompletedTransaction(2, 5, 9, 10, aborted=False)
    assert state.first_unstable_offset == 5
    state.advance_high_watermark(9)
    assert state.first_unstable_offset == 5
    state.advance_high_watermark(10)
    assert state.first_unstable_offset is None


def test_interleaved_transactions_end_in_any_order() -> None:
    partition = Partition()
    state = partition.state
    for producer in (1, 2, 3):
        partition.produce(batch(0, producer=producer, transactional=True))
    assert partition.end(2, committed=False) == CompletedTransaction(2, 1, 3, 0, aborted=True)
    assert partition.end(1, committed=False) == CompletedTransaction(1, 0, 4, 2, aborted=True)
    assert state.first_unstable_offset == 0
    state.advance_high_watermark(5)
    assert state.first_unstable_offset == 2
    assert partition.end(3, committed=True) == CompletedTransaction(3, 2, 5, 6, aborted=False)


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    partition = Partition()
    partition.produce(batch(0, transactional=True))
    assert partition.refusal(batch(1)) is ErrorCode.invalid_txn_state


def test_markers_fence_epochs_and_coordinators() -> None:
    partition = Partition()
    partition.produce(batch(0, transactional=True, epoch=4))
    partition.end(1, committed=True, epoch=5, coordinator_epoch=9)
    with pytest.raises(KafkaError) as caught:
        partition.end(1, committed=True, epoch=4, coordinator_epoch=9)
    assert caught.value.code is ErrorCode.invalid_producer_epoch
    with pytest.raises(KafkaError) as caught:
        partition.end(1, committed=True, epoch=5, coordinator_epoch=8)
    assert caught.value.code is ErrorCode.transaction_coordinator_fenced


def test_after_a_marker_bumped_the_epoch_sequences_begin_at_zero() -> None:
    partition = Partition()
    partition.produce(batch(0, 3, transactional=True))
    partition.end(1, committed=False, epoch=1)
    assert partition.refusal(batch(3, epoch=1)) is ErrorCode.out_of_order_sequence_number
    assert partition.produce(batch(0, epoch=1, transactional=True)) is None


def test_after_a_marker_of_the_same_epoch_sequences_continue() -> None:
    partition = Partition()
    partition.produce(batch(0, 3, transactional=True))
    partition.end(1, committed=True)
    assert partition.produce(batch(3, transactional=True)) is None


def test_an_empty_transaction_completes_nothing() -> None:
    assert Partition().end(1, committed=True) is None


def test_a_failed_check_changes_nothing() -> None:
    partition = Partition()
    partition.produce(batch(0, transactional=True))
    before = repr(list(partition.state))
    for bad in (batch(5, transactional=True), batch(1), batch(1, epoch=1, transactional=True)):
        partition.refusal(bad)
    assert repr(list(partition.state)) == before


def log_of(events: list[tuple[str, int, int]]) -> list[bytes]:
    """A valid log of data batches, end markers and batches without a producer."""
    log = []
    offset = 0
    sequences: dict[int, int] = {}
    for kind, producer, count in events:
        sequence = sequences.get(producer, SEQUENCE_MAX - 2)
        if kind == "data":
            data = build_batch(
                [Record(0, 100 + offset, None, b"")] * count,
                base_offset=offset,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=producer % 2 == 0,
            )
            sequences[producer] = (sequence + count) & SEQUENCE_MAX
        elif kind == "end":
            # when the epoch of a producer is known, its sequences begin at 0
            sequences.setdefault(producer, 0)
            data = build_end_transaction_marker(
                producer,
                0,
                committed=count % 2 == 0,
                coordinator_epoch=count,
                timestamp=100 + offset,
                base_offset=offset,
            )
        else:
            data = build_batch([Record(0, 100 + offset, None, b"")] * count, base_offset=offset)
        log.append(data)
        offset = parse_header(data).next_offset
    return log


EVENTS = st.lists(
    st.tuples(st.sampled_from(["data", "data", "end", "plain"]), st.integers(0, 4), st.integers(1, 4)),
    max_size=40,
)


def replay(log: list[bytes], state: ProducerState) -> list[CompletedTransaction]:
    completed = (state.apply_batch(data, parse_header(data)) for data in log)
    return [transaction for transaction in completed if transaction is not None]


@given(EVENTS)
def test_followers_and_recovery_reach_the_leaders_state(events: list[tuple[str, int, int]]) -> None:
    log = log_of(events)
    leader = Partition()
    for data in log:
        header = parse_header(data)
        if header.is_control:
            leader.state.apply_batch(data, header)
        elif header.has_producer_id:
            assert leader.produce(header, header.max_timestamp) is None
            assert leader.state.check(header) is not None, "what was just appended is a duplicate"
        else:
            leader.state.advance_end(header.next_offset)
    follower = ProducerState(expiration_ms=DAY_MS)
    replay(log, follower)
    assert list(follower) == list(leader.state)
    assert follower.end_offset == leader.state.end_offset
    assert follower.first_unstable_offset == leader.state.first_unstable_offset


@given(EVENTS)
def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction(
    events: list[tuple[str, int, int]],
) -> None:
    log = log_of(events)
    state = ProducerState(expiration_ms=DAY_MS)
    completed = replay(log, state)
    began: dict[int, int] = {}
    ended = []
    for header in map(parse_header, log):
        if header.is_control and header.producer_id in began:
            ended.append((header.producer_id, began.pop(header.producer_id), header.base_offset))
        elif header.is_transactional and not header.is_control:
            began.setdefault(header.producer_id, header.base_offset)
    assert [transaction[:3] for transaction in completed] == ended
    state.advance_high_watermark(state.end_offset)
    assert state.first_unstable_offset == min(began.values(), default=None)


def test_an_emptied_control_batch_covers_its_offsets_and_ends_nothing() -> None:
    state = ProducerState(expiration_ms=DAY_MS)
    empty = build_batch([], base_offset=5, producer_id=1, control=True, transactional=True)
    assert state.apply_batch(empty, parse_header(empty)) is None
    assert state.end_offset == 6
    assert len(state) == 0


def test_a_control_batch_of_a_producer_must_hold_a_marker() -> None:
    state = ProducerState(expiration_ms=DAY_MS)
    bad = build_batch([Record(0, 0, b"\0\0\0\2", b"")], producer_id=1, control=True)
    with pytest.raises(InvalidRecordError):
        state.apply_batch(bad, parse_header(bad))


def test_the_log_start_moves_but_producers_stay_known() -> None:
    partition = Partition()
    partition.produce(batch(0, 3))
    partition.state.advance_log_start(10)
    assert partition.state.end_offset == 10
    assert partition.refusal(batch(7)) is ErrorCode.out_of_order_sequence_number
