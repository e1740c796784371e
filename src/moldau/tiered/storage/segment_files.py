"""The files of a remote segment. Pure."""

import enum
from dataclasses import dataclass

from moldau.runtime.buffers import Buffer

__all__ = ["IndexType", "LogSegmentData"]


class IndexType(enum.Enum):
    """The files of a segment except its log, by Kafka's names. Each file has Kafka's own file format."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    TRANSACTION = "transaction"
    LEADER_EPOCH = "leader-epoch"


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of a segment, as bytes in Kafka's file formats.

    A local segment's log is passed as a view of its (closed) file, ``runtime.File.view``, which needs no
    memory. ``transaction_index`` is ``None`` when the segment contains no aborted transaction.
    ``producer_snapshot`` and ``leader_epochs`` (the text of a ``leader-epoch-checkpoint``) describe the state
    *after* the segment. Therefore a replica that starts at the segment's end needs no earlier state.
    """

    log_segment: Buffer
    offset_index: Buffer
    time_index: Buffer
    transaction_index: Buffer | None
    producer_snapshot: Buffer
    leader_epochs: Buffer

    def index(self, index_type: IndexType) -> Buffer | None:
        """Return a file of the segment other than its log; ``None`` for a missing transaction index."""
        match index_type:
            case IndexType.OFFSET:
                return self.offset_index
            case IndexType.TIMESTAMP:
                return self.time_index
            case IndexType.PRODUCER_SNAPSHOT:
                return self.producer_snapshot
            case IndexType.TRANSACTION:
                return self.transaction_index
            case IndexType.LEADER_EPOCH:
                return self.leader_epochs
