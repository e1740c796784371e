"""A coordinator of diskless topics writes only while enough replicas of its log are in sync."""

import asyncio
import pathlib
from typing import Any
from uuid import UUID

import pytest

from moldau.cluster.partition import Partition
from moldau.cluster.topics_image import Topic
from moldau.coordinators.diskless.calls import PartitionsToCreate
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.diskless_metadata_kind import DisklessMetadataKind
from moldau.storage.log_manager import LogManager
from moldau.storage.topic_partition import TopicPartition

TOPIC = PartitionsToCreate(UUID(int=9), "t", [0])


def metadata_topic(in_sync: tuple[int, ...], partition_epoch: int) -> Topic:
    partition = Partition(
        replicas=(1, 2),
        isr=in_sync,
        leader=1,
        leader_epoch=0,
        partition_epoch=partition_epoch,
        directories=(UUID(int=101), UUID(int=102)),
    )
    return Topic("__diskless_metadata", UUID(int=5), (partition,))


def test_a_coordinator_does_not_write_below_min_in_sync(tmp_path: pathlib.Path) -> None:
    async def story() -> None:
        machine = Machine.real()
        logs: Any = LogManager(machine, [str(tmp_path)])
        coordinators = DisklessCoordinator(machine, opener=machine.open_sqlite)
        kind = DisklessMetadataKind(
            machine,
            logs,
            1,
            WaitingRoom(),
            coordinators,
            BrokerTopicMeters(Meters()),
            lambda: 2,
            lambda _: None,
        )
        topic = metadata_topic((1, 2), 0)
        await logs.get_or_create(TopicPartition(topic.name, 0), kind.log_config(topic), topic.topic_id)
        partition = kind.open(topic, 0)
        kind.take_role(partition, metadata_topic((1, 2), 0))
        await coordinators.until_loaded(0)
        kind.take_role(partition, metadata_topic((1,), 1))
        with pytest.raises(KafkaError) as refused:
            await coordinators.create_partitions(0, [TOPIC])
        assert refused.value.code is ErrorCode.coordinator_not_available
        kind.take_role(partition, metadata_topic((1, 2), 2))
        await coordinators.until_loaded(0)
        (created,) = await coordinators.create_partitions(0, [TOPIC])
        assert created.error is ErrorCode.none
        await coordinators.close()

    asyncio.run(story())
