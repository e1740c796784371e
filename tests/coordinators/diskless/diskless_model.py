"""A simple model of the coordinator. It consists of lists of batches. It does not pack batches, and its state
never expires."""

from dataclasses import dataclass, field

from moldau.coordinators.diskless.calls import HELD, BatchToCommit, CommitFileCall
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode

MODULUS = 1 << 31


@dataclass
class ModelBatch:
    base: int
    last: int
    key: str
    byte_offset: int
    size: int
    time: int


@dataclass
class ModelPartition:
    log_start: int = 0
    wal_start: int = 0
    next: int = 0
    batches: list[ModelBatch] = field(default_factory=list)
    producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)

    def live(self) -> list[ModelBatch]:
        return [found for found in self.batches if found.last >= self.wal_start]


class Model:
    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, ModelPartition] = {}
        self.answers: dict[str, list[tuple[ErrorCode, int, bool]]] = {}
        self.closed: set[str] = set()

    def commit(self, call: CommitFileCall) -> list[tuple[ErrorCode, int, bool]] | None:
        """Return, for each batch, the error, the base offset, and whether the batch is a duplicate. Return
        ``None`` if the whole file is refused."""
        if call.object_key in self.answers:
            return self.answers[call.object_key]
        if call.object_key in self.closed:
            return None
        answer = [self._batch(call.object_key, given) for given in call.batches]
        self.answers[call.object_key] = answer
        return answer

    def _batch(self, key: str, given: BatchToCommit) -> tuple[ErrorCode, int, bool]:
        partition = self.partitions.get(PartitionKey(given.topic_id, given.partition_index))
        if partition is None:
            return ErrorCode.unknown_topic_or_partition, -1, False
        base = partition.next
        if given.producer_id >= 0:
            known = partition.producers.get(given.producer_id)
            first, last, epoch = given.base_sequence, given.last_sequence, given.producer_epoch
            if known is not None:
                known_epoch, window = known
                if epoch < known_epoch:
                    return ErrorCode.invalid_producer_epoch, -1, False
                if epoch == known_epoch:
                    if first != (window[-1][1] + 1) % MODULUS:
                        for old_first, old_last, old_base in window[-5:]:
                            if (old_first, old_last) == (first, last):
                                return ErrorCode.none, old_base, True
                        is_ahead = (first - window[-1][1] - 1) % MODULUS < MODULUS // 2
                        if is_ahead:
                            return HELD, -1, False
                        if window[0][0] == 0 and 0 < first <= last <= window[-1][1]:
                            return ErrorCode.duplicate_sequence_number, -1, False
                        return ErrorCode.out_of_order_sequence_number, -1, False
                elif first != 0:
                    return HELD, -1, False
            elif first != 0:
                return HELD, -1, False
            if known is None or known[0] != epoch:
                known = partition.producers[given.producer_id] = (epoch, [])
            known[1].append((first, last, base))
        partition.next += given.records_count
        partition.batches.append(
            ModelBatch(
                base, partition.next - 1, key, given.byte_offset, given.size_bytes, given.max_timestamp_ms
            )
        )
        return ErrorCode.none, base, False

    def live_by_file(self) -> dict[str, list[int]]:
        """Sizes of the live batches of each file."""
        found: dict[str, list[int]] = {}
        for partition in self.partitions.values():
            for batch in partition.live():
                found.setdefault(batch.key, []).append(batch.size)
        return found
