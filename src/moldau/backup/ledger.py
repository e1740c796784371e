"""Tracks which parts of the logs are saved, and which parts a broker must save next. The broker that makes
the cuts uses it. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from moldau.backup.cut_format import ClusterCut, LogPiece, LogPieces
from moldau.backup.logs_to_save import LogToSave, SavedLog
from moldau.cluster.internal_topics import STATE_TOPICS, StateRetention
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError

__all__ = ["LedLog", "Ledger"]

PIECES_MAX: Final = 16
"""The maximum number of pieces of a log. When a log has this number of pieces, the last pieces of the log are
stored again as one piece."""


class LedLog(NamedTuple):
    """A partition that a cut must contain, with its leader."""

    topic: str
    log_id: PartitionKey
    leader_id: int
    leader_epoch: int


class Ledger:
    """The logs of the newest complete cut, and the changes by the unfinished cut.

    A cut is complete when its object is stored (:meth:`complete`). Until then its records do not count as
    saved. After a failure :meth:`abandon` discards the changes.
    """

    def __init__(self, newest: ClusterCut | None, name: str = "") -> None:
        """``name`` must differ between ledgers, because each ledger counts its rounds from 0."""
        self.name = name
        self.newest = newest
        self._logs = {} if newest is None else dict(newest.logs)
        self._changed: dict[PartitionKey, LogPieces] = {}
        self._asked: dict[PartitionKey, LogToSave] = {}
        """The last request for each log."""
        self.rounds = 0
        """Number of times that all logs were saved."""

    def request(self, log: LedLog) -> LogToSave:
        """The entry for one log in the request to the leader of this log.

        If the unfinished cut already has pieces of the log, the request asks for the records after these
        pieces. Raises ``KafkaError`` when another leader was elected after those pieces were stored.
        """
        saved, unfinished = self._logs.get(log.log_id), self._changed.get(log.log_id)
        if unfinished is not None:
            if log.leader_epoch != self._asked[log.log_id].leader_epoch:
                raise KafkaError(ErrorCode.leader_not_available, f"{log.log_id} got a leader meanwhile")
            from_offset = unfinished.end_offset
        elif saved is None:
            from_offset = -1
        else:
            from_offset = _next_from(saved.pieces)
            if from_offset >= 0 and not _may_read_again(log, saved, from_offset):
                from_offset = -1
        # A broker deletes data only when the end offset in such a request shows that the records on which the
        # deletion depends are saved. Therefore this end offset must be the end offset of a complete cut, not
        # of the unfinished cut.
        end = (-1, -1) if saved is None else (saved.end_offset, saved.epoch)
        asked = self._asked[log.log_id] = LogToSave(log.log_id, log.leader_epoch, *end, from_offset)
        return asked

    def saved(self, topic: str, answer: SavedLog) -> None:
        """Add the pieces that a leader has stored."""
        known = self._changed.get(answer.log_id, self._logs.get(answer.log_id))
        if answer.begins_anew:
            if known is None or known.pieces or answer.pieces:
                self._changed[answer.log_id] = LogPieces(topic, tuple(answer.pieces))
        elif answer.pieces and known is not None:
            self._changed[answer.log_id] = known.extended(
                answer.pieces, self._asked[answer.log_id].from_offset
            )

    def logs(self, existing: Iterable[PartitionKey]) -> dict[PartitionKey, LogPieces]:
        """The logs of the unfinished cut, without logs that no longer exist."""
        now = {**self._logs, **self._changed}
        return {log_id: now[log_id] for log_id in existing if log_id in now}

    def complete(self, cut: ClusterCut) -> None:
        """Make the unfinished cut the newest complete cut, because its object is stored."""
        self.newest, self._logs, self._changed = cut, dict(cut.logs), {}

    def abandon(self) -> None:
        """Discard the changes, because the cut could not be made."""
        self._changed = {}


def _may_read_again(log: LedLog, saved: LogPieces, from_offset: int) -> bool:
    """Whether the leader still has all saved records at or after an offset, so that these records can be read
    again.

    Compaction removes tombstones. An earlier piece may contain a record that a removed tombstone has deleted.
    A restore would then restore this deleted record. A leader knows the offsets that it has compacted itself
    (:mod:`.log_saver`). It does not know the offsets that another replica has compacted. Therefore, for a
    compacted log, the result is True only if each saved piece that ends after ``from_offset`` ends with a
    record of the leader's own epoch. For any other log, the result is always True.
    """
    state = STATE_TOPICS.get(log.topic)
    if state is None or state.retention is not StateRetention.COMPACTED:
        return True
    again = (piece for piece in saved.pieces if piece.end_offset > from_offset)
    return all(piece.epoch == log.leader_epoch for piece in again)


def _next_from(pieces: Sequence[LogPiece]) -> int:
    """The first offset of the next piece. It is the end of the last piece. If the next piece replaces small
    pieces, it is the beginning of the first replaced piece.

    Pieces of about the same size are stored again as one piece. Therefore a log has few pieces, and the
    number of times that a record is stored grows only with the logarithm of the log's size. The result -1
    requests the whole log.
    """
    if not pieces:
        return -1
    if len(pieces) < PIECES_MAX:
        return pieces[-1].end_offset
    following = 0
    first = len(pieces)
    for number in range(len(pieces) - 1, -1, -1):
        size_bytes = pieces[number].part.size_bytes
        if size_bytes > 2 * following and first <= len(pieces) - PIECES_MAX // 2:
            break
        following += size_bytes
        first = number
    if first == 0 or pieces[first].is_snapshot:
        return -1
    return pieces[first].base_offset
