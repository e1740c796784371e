"""The transaction coordinator over a log in memory: markers, new producer ids, loads."""

import asyncio

import pytest
from transaction_house import LoopClock, RecordingWriter, new_service, until_done

from memory_coordinator_log import MemoryLog
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.service import TransactionService
from moldau.coordinators.transactions.shard import ProducerAnswer
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.replication.partition_interface import TransactionMarker
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def _every_partition_gets_its_marker_before_the_end_is_written() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    service = new_service(writer)
    service.runtime.load(0, 5, log)
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    await service.add_partitions("orders", producer, [T0, T1], 0)
    assert not writer.written
    await service.end(Ending("orders", producer, True, 0))
    assert await until_done(service, "orders") is TransactionPhase.COMPLETE_COMMIT
    marker = TransactionMarker(100, 0, True, 5, 0, decision_partition=0, decision_offset=2)
    assert writer.written == [(marker, T0), (marker, T1)]
    await service.close()


async def _no_marker_is_written_before_the_outcome_is_committed() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    service = new_service(writer)
    _, ended = await _ending(service, log, commits=False)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not writer.written
    assert not ended.done()
    log.commit()
    await ended
    log.held = False
    await until_done(service, "orders")
    assert [(marker.committed, partition) for marker, partition in writer.written] == [(False, T0)]
    await service.close()


async def _only_committed_records_confirm_a_partition() -> None:
    log = MemoryLog()
    service = new_service(RecordingWriter())
    assert not service.confirms("orders", ProducerIdentity(100, 0), T0)  # no coordinator is here
    service.runtime.load(0, 5, log)
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    assert not service.confirms("orders", producer, T0)
    log.held = True
    adding = asyncio.ensure_future(service.add_partitions("orders", producer, [T0], 0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not service.confirms("orders", producer, T0)
    log.commit()
    await adding
    assert service.confirms("orders", producer, T0)
    assert (await service.verify("orders", producer, [T0]))[T0] is ErrorCode.none
    assert not service.confirms("orders", producer, T1)
    assert not service.confirms("others", producer, T0)
    for other in (ProducerIdentity(producer.producer_id, 1), ProducerIdentity(7, 0)):
        assert not service.confirms("orders", other, T0)
    with pytest.raises(KafkaError, match="empty"):
        service.confirms("", producer, T0)
    ending = asyncio.ensure_future(service.end(Ending("orders", producer, True, 0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not service.confirms("orders", producer, T0)  # the end is decided, although not committed
    log.commit()
    await ending
    log.held = False
    await until_done(service, "orders")
    assert not service.confirms("orders", producer, T0)
    await service.close()
    assert not service.confirms("orders", producer, T0)


async def _a_new_coordinator_finishes_what_it_finds_prepared() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    writer.deaf = {T1}
    first = new_service(writer)
    first.runtime.load(0, 5, log)
    await first.runtime.until_loaded(0)
    answer = await first.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    await first.add_partitions("orders", producer, [T0, T1], 2)
    await first.end(Ending("orders", producer, True, 2))
    await first.close()

    writer.deaf, writer.written = set(), []
    second = new_service(writer)
    second.runtime.load(0, 6, log)
    await second.runtime.until_loaded(0)
    assert await until_done(second, "orders") is TransactionPhase.COMPLETE_COMMIT
    marker = TransactionMarker(100, 1, True, 6, 2, decision_partition=0, decision_offset=2)
    assert writer.written == [(marker, T0), (marker, T1)]
    await second.close()


async def _ending(
    service: TransactionService, log: MemoryLog, *, commits: bool = True
) -> tuple[ProducerIdentity, "asyncio.Future[ProducerAnswer]"]:
    """Decide the end of a transaction, but do not commit the decision. Returns the producer, and the future
    response to EndTxn."""
    service.runtime.load(0, 5, log)
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
    await service.add_partitions("orders", producer, [T0], 0)
    log.held = True
    ended = asyncio.ensure_future(service.end(Ending("orders", producer, commits, 0)))
    ended.add_done_callback(lambda done: done.exception())
    await asyncio.sleep(0)
    return producer, ended


async def _the_next_transaction_begins_with_the_end_of_the_last_one() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    service = new_service(writer)
    producer, _ = await _ending(service, log)
    joins = [
        asyncio.ensure_future(service.add_partitions("orders", producer, [place], 0)) for place in (T0, T1)
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(join.done() for join in joins)
    appended = len(log.batches)
    log.held = False
    log.commit()
    await asyncio.gather(*joins)
    found = await service.describe("orders")
    assert found.state is TransactionPhase.ONGOING
    assert found.partitions == {T0, T1}
    assert [partition for _, partition in writer.written] == [T0]
    assert len(log.batches) == appended + 1, "the end of the last transaction has no batch of its own"
    await service.close()


async def _a_request_that_may_not_wait_is_refused() -> None:
    service, log = new_service(RecordingWriter()), MemoryLog()
    producer, _ = await _ending(service, log)
    with pytest.raises(KafkaError) as refused:
        await service.add_partitions("orders", producer, [T1], 2, may_wait=False)
    assert refused.value.code is ErrorCode.concurrent_transactions
    await service.close()


async def _the_search_is_repeated_until_the_decision_is_committed() -> None:
    writer, log = RecordingWriter(), MemoryLog()
    service = new_service(writer, LoopClock())
    await _ending(service, log)
    await asyncio.sleep(60)  # the search has failed, because nothing is committed
    assert not writer.written
    log.held = False
    log.commit()
    assert await until_done(service, "orders") is TransactionPhase.COMPLETE_COMMIT
    assert [partition for _, partition in writer.written] == [T0]
    await service.close()


async def _a_waiting_request_ends_with_its_coordinator() -> None:
    log = MemoryLog()
    service = new_service(RecordingWriter())
    producer, _ = await _ending(service, log)
    join = asyncio.ensure_future(service.add_partitions("orders", producer, [T1], 0))
    await asyncio.sleep(0)
    await service.close()
    with pytest.raises(KafkaError) as refused:
        await join
    assert refused.value.code is ErrorCode.not_coordinator


def test_the_next_transaction_begins_with_the_end_of_the_last_one() -> None:
    asyncio.run(_the_next_transaction_begins_with_the_end_of_the_last_one())


def test_a_request_that_may_not_wait_is_refused() -> None:
    asyncio.run(_a_request_that_may_not_wait_is_refused())


def test_the_search_is_repeated_until_the_decision_is_committed() -> None:
    with World(1) as world:
        world.run(_the_search_is_repeated_until_the_decision_is_committed())


def test_a_waiting_request_ends_with_its_coordinator() -> None:
    asyncio.run(_a_waiting_request_ends_with_its_coordinator())


def test_every_partition_gets_its_marker_before_the_end_is_written() -> None:
    asyncio.run(_every_partition_gets_its_marker_before_the_end_is_written())


def test_only_committed_records_confirm_a_partition() -> None:
    asyncio.run(_only_committed_records_confirm_a_partition())


def test_no_marker_is_written_before_the_outcome_is_committed() -> None:
    asyncio.run(_no_marker_is_written_before_the_outcome_is_committed())


def test_a_new_coordinator_completes_prepared_transactions() -> None:
    asyncio.run(_a_new_coordinator_finishes_what_it_finds_prepared())
