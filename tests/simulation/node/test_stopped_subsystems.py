"""After its stop, a subsystem does no work and gets no changes of the metadata. A test checks this for each
subsystem of a whole node."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from uuid import UUID

import pytest
from simulated_cluster import Cluster

from moldau.cluster.metadata_log import MetadataBatch
from moldau.protocol.records.metadata import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    encode_record,
)
from moldau.protocol.schema import Message
from moldau.server.node import ServerNode
from moldau.server.subsystem import Subsystem
from moldau.server.subsystems.partitions.subsystem import PartitionsSubsystem
from moldau.simulation.world.object_storage import CLASS_NAME, TIER_CLASS_NAME
from moldau.simulation.world.process import Process
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

HERE, ELSEWHERE = 11, 12
EVERYTHING = {
    "diskless.system.enable": "true",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.metadata.topic.replication.factor": "1",
    "diskless.storage.class.name": CLASS_NAME,
    "backup.enable": "false",
    "diskless.storage.url": "simulated:",
    "diskless.consolidation.enable": "true",
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": TIER_CLASS_NAME,
    "remote.log.metadata.topic.num.partitions": "2",
    "remote.log.metadata.topic.replication.factor": "1",
}
CONFIGS = {
    "classic": {},
    "tiered": {"remote.storage.enable": "true"},
    "diskless": {"diskless.enable": "true"},
}
TOPIC_TYPE = 2


def new_topics(number: int, leader: int) -> Iterator[Message]:
    """Records of the metadata log for one topic of each kind, each with a replica on this broker."""
    for place, (kind, configs) in enumerate(CONFIGS.items()):
        name, topic_id = f"{kind}-{number}", UUID(int=1000 + 10 * number + place)
        yield TopicRecord(name=name, topic_id=topic_id)
        for key, value in configs.items():
            yield ConfigRecord(resource_type=TOPIC_TYPE, resource_name=name, name=key, value=value)
        replicas = [HERE, ELSEWHERE]
        yield PartitionRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas,
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
            directories=[UUID(int=100), UUID(int=101)],
        )


def moved(topic_id: UUID, index: int, leader: int) -> Message:
    return PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=leader)


def show(node: ServerNode, *records: Message) -> None:
    """Apply records to the node's metadata image, as if the metadata log had committed them just now."""
    assert node.metadata is not None
    publisher = node.metadata.publisher
    offset = publisher.image.provenance.offset + 1
    values = [encode_record(record) for record in records]
    publisher.on_commit([MetadataBatch(offset, publisher.image.provenance.epoch, 0, values)])


def subsystems_of(node: ServerNode) -> list[Subsystem]:
    found = [node.find(kind) for kind in Subsystem.__subclasses__()]
    return [each for each in found if each is not None]


def run(world: World, story: Callable[[Cluster, ServerNode, Process], Awaitable[None]]) -> None:
    cluster = Cluster(world, {HERE: "broker,controller"}, {HERE: EVERYTHING})

    async def program() -> None:
        cluster.start(HERE)
        await cluster.until(lambda: HERE in cluster.nodes)
        process = world.host(f"node-{HERE}").process
        assert process is not None
        node = cluster.nodes[HERE]
        await node.get(PartitionsSubsystem).settled()
        await asyncio.create_task(story(cluster, node, process), context=process.context())

    world.run(program())


def test_no_subsystem_works_or_follows_the_metadata_after_its_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, node: ServerNode, process: Process) -> None:
        show(node, *new_topics(0, leader=HERE))
        await node.get(PartitionsSubsystem).settled()
        partitions = node.get(PartitionsSubsystem)
        assert partitions.partition("diskless-0", 0) is not None
        await asyncio.sleep(1)
        numbers = iter(range(1, 1000))
        stopped: list[Subsystem] = []
        told_late: list[str] = []

        def news() -> None:
            """Show the node three kinds of changes: topics with leaders on this node, topics with followers
            on this node, and changes of existing topics."""
            number = next(numbers)
            show(
                node,
                *new_topics(2 * number, leader=HERE),
                *new_topics(2 * number + 1, leader=ELSEWHERE),
                *(moved(UUID(int=1000 + place), 0, ELSEWHERE) for place in range(len(CONFIGS))),
            )

        def watch(each: Subsystem) -> None:
            stop, on_image = each.stop, each.on_image

            def noted(delta: object, image: object) -> None:
                if each in stopped:
                    told_late.append(type(each).__name__)
                on_image(delta, image)  # type: ignore[arg-type]

            async def stop_and_go_on() -> None:
                news()
                await stop()
                stopped.append(each)
                news()
                await asyncio.sleep(0.1)

            monkeypatch.setattr(each, "on_image", noted)
            monkeypatch.setattr(each, "stop", stop_and_go_on)

        every = subsystems_of(node)
        for each in every:
            watch(each)
        stopping = asyncio.current_task()
        await node.stop()
        assert len(stopped) == len(every)
        assert len(every) > 12
        assert told_late == []
        assert [name for name in CONFIGS if partitions.partition(f"{name}-2", 0) is not None] == []
        left = [task for task in process.pending_tasks() if task not in (stopping, process.main)]
        assert left == []

    with World(7) as world:
        run(world, story)
