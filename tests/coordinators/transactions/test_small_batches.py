"""A transaction that does not fit in a batch of ``__transaction_state`` is refused, and no state is lost."""

import asyncio
import contextlib

import pytest
from transaction_house import RecordingWriter, new_service

from memory_coordinator_log import MemoryLog
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError


async def _too_many_partitions_are_refused() -> None:
    service = new_service(RecordingWriter())
    service.runtime.load(0, 5, MemoryLog(max_batch_bytes=10_000))
    await service.runtime.until_loaded(0)
    answer = await service.init_producer(Initialization("orders", 60_000))
    producer = ProducerIdentity(answer.producer_id, 0)
    host = service.runtime.led(0)
    assert host is not None
    loads = host.loads
    many = [TopicPartition("t", index) for index in range(5000)]
    await service.add_partitions("orders", producer, many[:2400], 0)
    for count in range(2410, 2500, 10):
        with contextlib.suppress(KafkaError):
            await service.add_partitions("orders", producer, many[:count], 0)
    with pytest.raises(KafkaError) as refused:
        await service.add_partitions("orders", producer, many, 0)
    assert refused.value.code is ErrorCode.message_too_large
    assert host.loads == loads
    assert len((await service.describe("orders")).partitions) >= 2400
    await service.close()


def test_too_many_partitions_are_refused() -> None:
    asyncio.run(_too_many_partitions_are_refused())
