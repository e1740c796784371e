"""If a kind of partition does not implement transactions, it refuses transactional batches and delays no
transaction."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.partition_interface import AppendOutcome, Partition, TransactionMarker
from moldau.runtime import ErrorCode, UnexpectedErrors
from moldau.server.handlers.records.transaction_markers import Participation
from moldau.server.handlers.records.transactional_appends import TransactionalAppends, TransactionalProduce
from moldau.server.subsystems.transactions.markers import LocalMarkers

BATCH = memoryview(
    build_batch(
        [Record(0, 1_700_000_000_000, b"k", b"v", ())], producer_id=7, producer_epoch=0, transactional=True
    )
)


class MirroredPartition(Partition):
    """A third kind of partition. It appends all batches, and does not implement transactions."""

    key = PartitionKey(UUID(int=1), 0)
    topic = "mirrored"

    def __init__(self) -> None:
        self.appended = 0

    def append(self, records: memoryview, **terms: Any) -> AppendOutcome:
        self.appended += 1
        return AppendOutcome()


async def _unasked(participation: Participation) -> None:
    raise AssertionError("no partition of this kind may join a transaction")


def test_a_transactional_batch_is_refused_with_the_reason() -> None:
    partition = MirroredPartition()  # type: ignore[abstract]

    async def append(api_version: int) -> AppendOutcome:
        appends = TransactionalAppends(_unasked, UnexpectedErrors())
        answer = appends.append(partition, BATCH, TransactionalProduce("x", api_version, -1, 1000))
        return answer if isinstance(answer, AppendOutcome) else await answer

    for api_version in (9, 11, 12):
        refused = asyncio.run(append(api_version))
        assert refused.error is ErrorCode.invalid_request
        assert refused.message == "mirrored takes no transactions: its kind of partition has none"
    assert not partition.appended


def test_the_marker_of_a_transaction_with_the_partition_is_accepted() -> None:
    partition = MirroredPartition()  # type: ignore[abstract]
    registry: Any = SimpleNamespace(find=lambda *place: partition)
    groups: Any = None
    markers = LocalMarkers(registry, groups)
    marker = TransactionMarker(7, 0, False, 0, 1)
    assert asyncio.run(markers.write(marker, TopicPartition("mirrored", 0))) is ErrorCode.none
    assert not partition.appended
