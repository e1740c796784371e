"""Seeded histories with idempotent producers that retry. The store and the coordinators have outages."""

import asyncio

import pytest
from writer_fakes import FakeCoordinator, batch, key, run_in_virtual_time, until_room

from moldau.diskless.object_keys import ObjectOrigin
from moldau.diskless.writing.writer import DisklessWriter, WriterSettings
from moldau.metrics import Meters
from moldau.objects import FaultyStorage, Latency, MemoryStorage, RetryPolicy, StorageWeather
from moldau.protocol.partitions import PartitionKey
from moldau.replication.partition_interface import AppendAnswer, AppendOutcome
from moldau.runtime import ErrorCode, Machine

BATCHES = 40
IN_FLIGHT = 3
RETRIABLE = {
    ErrorCode.request_timed_out,
    ErrorCode.kafka_storage_error,
    ErrorCode.out_of_order_sequence_number,
}


async def produce(writer: DisklessWriter, machine: Machine, where: PartitionKey, producer_id: int) -> None:
    """Produce like Kafka's producer: several requests are in flight. If a request fails, this request and all
    later requests are sent again."""
    acknowledged = 0
    while acknowledged < BATCHES:
        answers: list[AppendAnswer] = []
        for sequence in range(acknowledged, min(BATCHES, acknowledged + IN_FLIGHT)):
            records, header = batch(
                b"%d %d" % (producer_id, sequence), producer_id=producer_id, epoch=0, sequence=sequence
            )
            await until_room(writer)
            answers.append(writer.append(where, records, header, timeout_ms=1_500))
            await asyncio.sleep(machine.entropy.uniform(0, 0.05))
        for answer in answers:
            outcome = answer if isinstance(answer, AppendOutcome) else await answer
            if outcome.error is not ErrorCode.none:
                assert outcome.error in RETRIABLE
                await asyncio.gather(*(one for one in answers if isinstance(one, asyncio.Future)))
                await asyncio.sleep(0.1)
                break
            acknowledged += 1


async def bad_days(machine: Machine, weather: StorageWeather, coordinator: FakeCoordinator) -> None:
    chance = machine.entropy
    while True:
        weather.down = chance.uniform(0, 1) < 0.15
        weather.failed_chance = chance.uniform(0, 0.4)
        weather.answer_lost_chance = chance.uniform(0, 0.3)
        weather.put_latency = Latency(*((20, 100) if chance.uniform(0, 1) < 0.7 else (400, 3_000)))
        coordinator.is_away = chance.uniform(0, 1) < 0.15
        coordinator.lose_answer_chance = chance.uniform(0, 0.5)
        coordinator.lose_request_chance = chance.uniform(0, 0.3)
        coordinator.latency_s = chance.uniform(0, 0.2)
        await asyncio.sleep(chance.uniform(0.2, 3))


@pytest.mark.parametrize("seed", range(16))
def test_nothing_acknowledged_is_lost_nothing_is_doubled_and_bounds_hold(seed: int) -> None:
    async def story(machine: Machine) -> None:
        memory = MemoryStorage(machine.clock)
        weather = StorageWeather()
        coordinator = FakeCoordinator(machine.entropy, coordinator_count=2)
        settings = WriterSettings(
            buffer_max_bytes=600,
            max_buffered_bytes=3_000,
            max_uploads=3,
            puts_per_second=50,
            retries=RetryPolicy(first_backoff_ms=20, max_backoff_ms=300, attempt_timeout_ms=1_000),
        )
        storage = FaultyStorage(memory, machine.entropy, weather)
        writer = DisklessWriter(
            storage, coordinator, machine, Meters(), ObjectOrigin(1, machine.clock.now_ms), settings=settings
        )
        nemesis = asyncio.create_task(bad_days(machine, weather, coordinator))
        places = [key(1, 0), key(1, 1), key(2, 0), key(2, 3)]
        producers = [(where, number * 10 + which) for number, where in enumerate(places) for which in (1, 2)]
        highest = 0

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, writer.buffered_bytes)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(produce(writer, machine, where, number) for where, number in producers))
        nemesis.cancel()
        watching.cancel()
        await asyncio.gather(nemesis, watching, return_exceptions=True)
        weather.down = coordinator.is_away = False
        weather.failed_chance = weather.answer_lost_chance = 0.0
        coordinator.lose_answer_chance = coordinator.lose_request_chance = 0.0
        await asyncio.sleep(60)
        assert writer.buffered_bytes == 0
        assert highest <= 2 * settings.max_buffered_bytes
        objects = memory._objects
        for where in places:
            found: dict[int, list[int]] = {}
            for _, object_key, one in coordinator.partitions[where].committed:
                content = objects[object_key][0][one.byte_offset : one.byte_offset + one.size_bytes]
                expected, _ = batch(
                    b"%d %d" % (one.producer_id, one.base_sequence),
                    producer_id=one.producer_id,
                    epoch=0,
                    sequence=one.base_sequence,
                )
                assert content == bytes(expected)
                found.setdefault(one.producer_id, []).append(one.base_sequence)
            assert len(found) == 2
            for sequences in found.values():
                assert sequences == list(range(BATCHES))
        await writer.close()

    run_in_virtual_time(story, seed)
