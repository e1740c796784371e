"""A coordinator of diskless topics writes only while enough replicas of its log are in sync."""

import asyncio
import pathlib
from typing import Any
from uuid import UUID

import pytest

from created_logs import get_or_create
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, InternalTopic
from moldau.coordinators.diskless.calls import PartitionsToCreate
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.hosted import HostedKind
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import ReadRequest
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.coordinators.entry import entry_of
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.server.subsystems.diskless.metadata_kind import diskless_metadata_kind
from moldau.server.subsystems.partitions.classic_kind import ReplicaHost
from moldau.storage.log_manager import LogManager

TOPIC = PartitionsToCreate(UUID(int=9), "t", [0])


def metadata_topic(in_sync: tuple[int, ...], partition_epoch: int) -> Topic:
    partition = PartitionRegistration(
        replicas=(1, 2),
        isr=in_sync,
        leader=1,
        leader_epoch=0,
        partition_epoch=partition_epoch,
        directories=(UUID(int=101), UUID(int=102)),
    )
    return Topic(DISKLESS_METADATA_TOPIC, UUID(int=5), (partition,))


def test_a_coordinator_writes_only_while_enough_replicas_are_in_sync(tmp_path: pathlib.Path) -> None:
    async def story() -> None:
        machine = Machine.real()
        logs: Any = LogManager(machine, [str(tmp_path)])
        coordinators = DisklessCoordinator(machine, opener=machine.open_sqlite)
        host = ReplicaHost(
            machine=machine,
            logs=logs,
            local_id=1,
            arrivals=WaitingRoom(),
            meters=BrokerTopicMeters(Meters()),
        )
        kind = diskless_metadata_kind(host, lambda: 2)
        entry = entry_of(
            HostedKind("diskless", coordinators.runtime, InternalTopic(DISKLESS_METADATA_TOPIC, 1, 2, ""))
        )
        registry = CoordinatorRegistry([entry])

        def follow(topic: Topic) -> None:
            epoch = topic.partitions[0].leader_epoch
            kind.apply_role(partition, topic, lambda: registry.leads(partition, epoch))

        topic = metadata_topic((1, 2), 0)
        await get_or_create(logs, TopicPartition(topic.name, 0), kind.log_config(topic), topic.topic_id)
        partition = kind.open(topic, 0)
        assert isinstance(partition, ClassicPartition)
        follow(metadata_topic((1, 2), 0))
        await coordinators.until_loaded(0)
        follow(metadata_topic((1,), 1))
        with pytest.raises(KafkaError) as refused:
            await coordinators.create_partitions(0, [TOPIC])
        assert refused.value.code is ErrorCode.coordinator_not_available
        follow(metadata_topic((1, 2), 2))
        await coordinators.until_loaded(0)
        creating = asyncio.ensure_future(coordinators.create_partitions(0, [TOPIC]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await partition.settled()
        assert not creating.done(), "the other in-sync replica does not have the record yet"
        partition.read(ReadRequest(partition.log.log_end_offset, 1, replica_id=2))
        (created,) = await creating
        assert created.error is ErrorCode.none
        await coordinators.close()

    asyncio.run(story())
