"""The end of a transaction is committed late. At that time, the next transaction of the producer is already
in progress."""

import asyncio
from collections.abc import Iterable

from transaction_house import LoopClock, RecordingWriter, new_service, until_done

from memory_coordinator_log import MemoryLog
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def _the_next_transaction_gets_its_own_markers() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    service = new_service(writer, LoopClock())
    service.runtime.load(0, 5, log)
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    await service.add_partitions("orders", producer, [T0], 0)
    writer.deaf = {T0}
    await service.end(Ending("orders", producer, True, 0))
    await asyncio.sleep(0.05)
    writer.deaf = set()
    # The completion is appended. Waiting for its commit times out, but later the completion is committed.
    log.held = True
    await asyncio.sleep(5.2)
    log.held = False
    log.commit()
    # A client of version 1 uses the same producer id and epoch for its next transaction.
    await service.add_partitions("orders", producer, [T1], 0)
    writer.deaf, writer.written = {T1}, []
    await service.end(Ending("orders", producer, True, 0))
    await asyncio.sleep(20)
    assert (await service.describe("orders")).state is TransactionPhase.PREPARE_COMMIT
    writer.deaf = set()
    await asyncio.sleep(20)
    assert await until_done(service, "orders") is TransactionPhase.COMPLETE_COMMIT
    assert [partition for _, partition in writer.written] == [T1]
    assert not service.completion.count
    await service.close()


def test_the_next_transaction_gets_its_own_markers() -> None:
    with World(1) as world:
        world.run(_the_next_transaction_gets_its_own_markers())


class FencedWriter(RecordingWriter):
    """A writer of markers that refuses every marker, as if the partitions had markers of a newer coordinator
    already."""

    calls = 0

    async def write(
        self, marker: TransactionMarker, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        self.calls += 1
        raise KafkaError(ErrorCode.transaction_coordinator_fenced)


async def _a_fenced_coordinator_sends_no_more_markers() -> None:
    writer = FencedWriter()
    service = new_service(writer, LoopClock())
    service.runtime.load(0, 5, MemoryLog())
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    await service.add_partitions("orders", producer, [T0], 0)
    await service.end(Ending("orders", producer, True, 0))
    await asyncio.sleep(20)
    assert writer.calls == 1
    assert (await service.describe("orders")).state is TransactionPhase.PREPARE_COMMIT
    assert not service.completion.count
    await service.close()


def test_a_fenced_coordinator_sends_no_more_markers() -> None:
    with World(1) as world:
        world.run(_a_fenced_coordinator_sends_no_more_markers())
