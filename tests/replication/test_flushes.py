"""Appends that wait for the flush that ``flush.messages`` requires."""

import asyncio
import errno
from uuid import UUID

import pytest

from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.metrics.registry import Meters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ACKS_ALL, ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.partition_interface import AppendAnswer
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import Machine
from moldau.runtime.errors import ErrorCode
from moldau.simulation.world.disks.disk import DiskFault, MountedDisk
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog

BATCH = memoryview(build_batch([Record(0, 0, None, b"v", ())]))
FOLDER = "/data/t-0"


def led(machine: Machine, flush_messages: int) -> ClassicPartition:
    machine.disk.make_dirs(FOLDER)
    config = LogConfig(flush_messages=flush_messages)
    log = PartitionLog.open(machine, FOLDER, TopicPartition("t", 0), config)
    partition = ClassicPartition(
        ReplicaContext(machine, 1, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))),
        PartitionKey(UUID(int=1), 0),
        log,
        min_in_sync=1,
        high_watermark=0,
    )
    partition.become_leader(0, (1,), (1,))
    serving()
    return partition


def play(story: object) -> None:
    with World(0) as world:
        host = world.host("node")

        async def run() -> None:
            process = host.start(story)  # type: ignore[arg-type]
            assert process.main is not None
            await asyncio.wait([process.main])
            process.main.result()

        world.run(run())
        assert world.errors() == []


def append(partition: ClassicPartition, acks: int = ACKS_ALL) -> AppendAnswer:
    return partition.append(BATCH, required_acks=acks, timeout_ms=1000)


@pytest.mark.parametrize("acks", [1, ACKS_ALL])
def test_an_append_is_acknowledged_and_read_once_it_is_flushed(acks: int) -> None:
    async def story(machine: Machine) -> None:
        partition = led(machine, 1)
        answers = [append(partition, acks) for _ in range(20)]
        assert partition.high_watermark == 0
        for number, answer in enumerate(answers):
            assert isinstance(answer, asyncio.Future)
            outcome = await answer
            assert (outcome.error, outcome.base_offset) == (ErrorCode.none, number)
            assert partition.log.flushed_offset > number
            assert partition.high_watermark > number

    play(story)


def test_appends_that_meet_share_a_flush() -> None:
    async def story(machine: Machine) -> None:
        partition = led(machine, 1)
        flushes = 0
        flush = partition.log.flush

        async def counted(up_to: int | None = None) -> int:
            nonlocal flushes
            flushes += 1
            return await flush(up_to)

        partition.log.flush = counted  # type: ignore[method-assign]
        answers = [append(partition) for _ in range(100)]
        await asyncio.wait([answer for answer in answers if isinstance(answer, asyncio.Future)])
        assert flushes <= 2

    play(story)


def test_only_every_nth_append_waits_for_a_flush() -> None:
    async def story(machine: Machine) -> None:
        partition = led(machine, 3)
        for number in range(9):
            answer = append(partition)
            assert isinstance(answer, asyncio.Future) == (number % 3 == 2)
            if isinstance(answer, asyncio.Future):
                await answer
                assert partition.log.flushed_offset == number + 1
            assert partition.high_watermark == number + 1

    play(story)


def test_an_append_whose_flush_fails_is_refused() -> None:
    async def story(machine: Machine) -> None:
        partition = led(machine, 1)
        assert isinstance(machine.disk, MountedDisk)
        machine.disk.device.faults.append(DiskFault("sync", errno.EIO, path_part=".log"))
        answers = [append(partition) for _ in range(3)]
        for answer in answers:
            assert isinstance(answer, asyncio.Future)
            assert (await answer).error is ErrorCode.kafka_storage_error
        assert partition.high_watermark == 0

    play(story)


def test_appends_that_wait_for_a_flush_get_an_error_when_the_leader_resigns() -> None:
    async def story(machine: Machine) -> None:
        partition = led(machine, 1)
        answer = append(partition)
        assert isinstance(answer, asyncio.Future)
        partition.resign(1)
        assert (await answer).error is ErrorCode.not_leader_or_follower

    play(story)
