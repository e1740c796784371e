"""The ledger of saved logs, compared with a model. The log grows. Sometimes it gets shorter, and sometimes it
is saved again as a whole."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from moldau.backup.calls import SavedLog
from moldau.backup.cut_format import ClusterCut, LogPiece, ObjectPart
from moldau.backup.ledger import PIECES_MAX, Ledger, LedLog
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC, DISKLESS_METADATA_TOPIC
from moldau.protocol.partitions import PartitionKey

LOG = LedLog(CONSUMER_OFFSETS_TOPIC, PartitionKey(uuid.UUID(int=7), 3), leader_id=1, leader_epoch=0)


def _cut(ledger: Ledger) -> ClusterCut:
    return ClusterCut(
        cluster_id="c",
        created_ms=1,
        metadata=ObjectPart("image", 0, 1, 2),
        metadata_offset=1,
        metadata_epoch=1,
        logs=ledger.logs([LOG.log_id]),
    )


def _piece(start: int, end: int, number: int = 0) -> LogPiece:
    return LogPiece(ObjectPart(f"object-{number}", start, end - start, 0), start, end, 0)


@given(st.lists(st.tuples(st.integers(0, 2_000), st.booleans(), st.integers(0, 3)), min_size=1, max_size=60))
def test_the_saved_pieces_together_are_the_log_up_to_its_end(rounds: list[tuple[int, bool, int]]) -> None:
    """Compaction has removed some records at the beginning of the part that is saved."""
    ledger, end, stored, completed_end = Ledger(None), 0, 0, -1
    for number, (growth, succeeds, removed) in enumerate(rounds):
        end += growth
        wanted = ledger.request(LOG)
        assert wanted.saved_end_offset == completed_end
        asked = max(0, wanted.from_offset)
        start = min(asked + removed, end - 1)  # compaction never removes the last record of a log
        pieces = [_piece(start, end, number)] if asked < end else []
        stored += sum(each.part.size_bytes for each in pieces)
        ledger.saved(LOG.topic, SavedLog(LOG.log_id, wanted.from_offset < 0, pieces))
        if not succeeds:
            ledger.abandon()
            continue
        cut = _cut(ledger)
        ledger.complete(cut)
        completed_end = end
        saved = cut.logs[LOG.log_id]
        assert saved.problem() is None
        assert saved.end_offset == (end if saved.pieces else 0)
        assert len(saved.pieces) <= PIECES_MAX


def test_a_record_is_stored_only_a_few_times_even_with_many_cuts() -> None:
    ledger, stored, end = Ledger(None), 0, 0
    for number in range(2_000):
        end += 10
        wanted = ledger.request(LOG)
        piece = _piece(max(0, wanted.from_offset), end, number)
        stored += piece.part.size_bytes
        ledger.saved(LOG.topic, SavedLog(LOG.log_id, wanted.from_offset < 0, [piece]))
        ledger.complete(_cut(ledger))
    assert stored < 8 * end


def test_a_log_that_does_not_continue_replaces_the_saved_pieces() -> None:
    ledger = Ledger(None)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [_piece(0, 50)]))
    ledger.complete(_cut(ledger))
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [_piece(20, 30, 1)]))
    assert [each.base_offset for each in ledger.logs([LOG.log_id])[LOG.log_id].pieces] == [20]


def test_a_snapshot_replaces_everything_before_it() -> None:
    ledger = Ledger(None)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [_piece(0, 50)]))
    ledger.complete(_cut(ledger))
    snapshot = LogPiece(ObjectPart("s", 0, 9, 0), 0, 60, 2, is_snapshot=True)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [snapshot, _piece(60, 70, 1)]))
    assert ledger.logs([LOG.log_id])[LOG.log_id].pieces[0] == snapshot


def test_a_log_that_was_deleted_is_not_in_the_next_cut() -> None:
    ledger = Ledger(None)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [_piece(0, 50)]))
    assert ledger.logs([]) == {}


def test_records_of_other_leaders_are_not_read_again_after_a_compaction() -> None:
    """Another replica may have removed a tombstone. The record that this tombstone deletes may still be in a
    piece that was saved earlier."""

    def asked(topic: str) -> int:
        ledger, log = Ledger(None), LOG._replace(topic=topic, leader_epoch=1)
        ledger.saved(topic, SavedLog(LOG.log_id, True, [_piece(0, 500)]))
        for number in range(1, PIECES_MAX):
            ledger.complete(_cut(ledger))
            ledger.request(log)
            ledger.saved(topic, SavedLog(LOG.log_id, False, [_piece(500 + number, 501 + number, number)]))
        ledger.complete(_cut(ledger))
        return ledger.request(log).from_offset

    assert asked(DISKLESS_METADATA_TOPIC) > 0
    assert asked(CONSUMER_OFFSETS_TOPIC) == -1


def test_a_second_pass_continues_the_unfinished_cut_and_not_the_saved_end() -> None:
    """Deletions of old data depend on the saved end. The saved end changes only when a cut is complete."""
    ledger = Ledger(None)
    ledger.request(LOG)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [_piece(0, 50)]))
    ledger.complete(_cut(ledger))
    ledger.request(LOG)
    snapshot = LogPiece(ObjectPart("s", 0, 9, 0), 0, 60, 0, is_snapshot=True)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, True, [snapshot, _piece(60, 70, 1)]))
    again = ledger.request(LOG)
    assert (again.saved_end_offset, again.from_offset) == (50, 70)
    ledger.saved(LOG.topic, SavedLog(LOG.log_id, False, [_piece(70, 80, 2)]))
    saved = ledger.logs([LOG.log_id])[LOG.log_id]
    assert [each.end_offset for each in saved.pieces] == [60, 70, 80]
    ledger.abandon()
    assert ledger.request(LOG).from_offset == 50
