"""Replicas move between the log directories of their brokers, in virtual time (AlterReplicaLogDirs)."""

import asyncio
import errno
from typing import Any

import pytest
from two_directories import House

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.runtime.files.disk import DiskError
from moldau.simulation.clients.client import Producer, Sending
from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.world import World
from moldau.storage.folders.future_logs import FutureLogs, LogMove

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class MovingHouse(House):
    """A test environment in which a replica of broker 11 moves."""

    index = 0

    def place(self) -> str:
        """The directory of the replica."""
        return str(self.hosted(11)[self.index].log.directory.rpartition("/")[0])

    def other(self) -> str:
        return {"/data/a": "/data/b", "/data/b": "/data/a"}[self.place()]

    async def move(self, path: str, index: int = 0) -> ErrorCode:
        topic = AlterReplicaLogDirTopic(name="t", partitions=[index])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
        answer = await self.ask(11, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request)
        code: ErrorCode = answer.results[0].partitions[0].error_code
        return code

    async def limit(self, rate: int) -> None:
        row = AlterableConfig(name=RATE, config_operation=0, value=str(rate))
        resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[row])
        answer = await self.ask(
            11, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource])
        )
        assert answer.responses[0].error_code is ErrorCode.none
        await asyncio.sleep(1)

    async def futures(self) -> dict[str, Any]:
        """The copies in progress for each directory."""
        answer = await self.ask(11, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
        return {
            directory.log_dir: row
            for directory in answer.results
            for topic in directory.topics
            for row in topic.partitions
            if row.is_future_key
        }

    async def produce_with_times(self, count: int, name: str) -> None:
        """Produce records with timestamps to the replica's partition."""
        client = self.cluster.client(name, 12)
        producer = Producer(
            name,
            client.bootstrap,
            self.cluster.history,
            client.chance,
            TopicPartition("t", self.index),
            Sending(stamped=True),
        )
        await self.cluster.on(name, producer.run(count, pause_s=0.01))

    async def moved(self, path: str) -> None:
        """Wait until the replica is at the path and in sync, and the metadata name its directory."""
        wanted = self.directory_id(11, path)
        await self.cluster.until(lambda: self.rows()[self.index].directory_of(11) == wanted)
        await self.cluster.until(lambda: self.index in self.hosted(11) and self.place() == path)
        await self.in_sync()

    def contents(self) -> list[bytes]:
        """The records of the replica of each broker."""
        found = []
        for broker in (11, 12):
            log = self.hosted(broker)[self.index].log
            found.append(b"".join(bytes(view) for view in log.read(log.log_start_offset, 1 << 24).views))
        return found


@pytest.mark.parametrize("leads", [True, False])
def test_a_replica_moves_while_records_are_written(leads: bool) -> None:
    with World(3) as world:
        house = MovingHouse(world)

        async def story() -> None:
            await house.begin()
            house.index = next(i for i, row in enumerate(house.rows()) if (row.leader == 11) is leads)
            await house.produce(60, "before")
            await house.limit(50)
            source, target = house.place(), house.other()
            assert await house.move(target, house.index) is ErrorCode.none
            assert await house.move(target, house.index) is ErrorCode.none
            await asyncio.sleep(2)
            (path, row), *others = (await house.futures()).items()
            assert (path, row.partition_index, others) == (target, house.index, [])
            assert row.offset_lag > 0
            assert house.place() == source
            writing = asyncio.ensure_future(house.produce(60, "during"))
            await asyncio.sleep(0.5)
            await house.limit(10**9)
            await writing
            await house.moved(target)
            assert not await house.futures()
            await house.produce(5, "after")
            await house.cluster.until(lambda: len(set(house.contents())) == 1)
            log = house.hosted(11)[house.index].log
            assert (log.log_start_offset, log.log_end_offset) == (0, 125)
            names = house.disk(11).volume.root.entries["data"].entries[source[-1]].entries
            assert f"t-{house.index}" not in names

            await house.restart(11)
            await house.moved(target)
            assert len(set(house.contents())) == 1

        world.run(story())


def test_a_moved_replica_remembers_several_batches_of_each_producer() -> None:
    """A producer that lost several responses sends several batches again."""
    with World(5) as world:
        house = MovingHouse(world)
        # The copy gets several segments, so that it begins with a snapshot of the producers.
        for node_id, properties in house.cluster.properties.items():
            house.cluster.properties[node_id] = {**properties, "log.roll.ms": "20"}

        def batches(broker: int) -> dict[int, list[Any]]:
            state = house.hosted(broker)[house.index].log.producers.state
            return {entry.producer_id: list(entry.batches) for entry in state}

        async def story() -> None:
            await house.begin()
            await house.produce_with_times(60, "before")
            await house.limit(50)
            target = house.other()
            assert await house.move(target) is ErrorCode.none
            await asyncio.sleep(2)
            writing = asyncio.ensure_future(house.produce_with_times(300, "during"))
            await asyncio.sleep(0.2)
            await house.limit(10**9)
            await writing
            await house.moved(target)
            assert all(len(found) > 1 for found in batches(12).values())
            assert batches(11) == batches(12)

        world.run(story())


def test_a_moved_replica_remembers_batches_whose_records_were_deleted() -> None:
    """The copy of the log does not contain the deleted records. But the producer may still send its last
    batches again."""
    with World(8) as world:
        house = MovingHouse(world)

        def batches(broker: int) -> list[list[Any]]:
            state = house.hosted(broker)[house.index].log.producers.state
            return [list(entry.batches) for entry in state]

        async def story() -> None:
            await house.begin()
            await house.produce(60, "before")
            admin = house.cluster.client("admin", 12)
            await house.cluster.on("admin", admin.delete_records(TopicPartition("t", house.index), 60))
            await house.cluster.until(
                lambda: all(house.hosted(each)[house.index].log.log_start_offset == 60 for each in (11, 12))
            )
            await house.produce(1, "after")
            before = batches(11)
            assert [len(found) for found in before] == [5, 1]
            assert await house.move(house.other()) is ErrorCode.none
            await house.moved(house.other())
            assert batches(11) == before

        world.run(story())


def test_a_move_survives_the_end_of_its_process_while_it_copies() -> None:
    with World(4) as world:
        house = MovingHouse(world)

        async def story() -> None:
            await house.begin()
            await house.produce(60, "before")
            await house.limit(50)
            target = house.other()
            assert await house.move(target) is ErrorCode.none
            await asyncio.sleep(2)
            await house.restart(11)
            await house.cluster.until(lambda: 0 in house.hosted(11))
            await house.limit(10**9)
            await house.moved(target)
            assert len(set(house.contents())) == 1
            assert house.hosted(11)[0].log.log_end_offset == 60

        world.run(story())


@pytest.mark.parametrize("fault", ["the old folder", "the new folder"])
def test_an_exchange_survives_its_interruption_at_each_step(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a move, the broker exchanges the two logs by two renames. The disk fails at one of these
    renames. After a restart of the broker the disk works again."""
    with World(5) as world:
        house = MovingHouse(world)

        async def story() -> None:
            await house.begin()
            house.index = next(i for i in house.hosted(11) if house.hosted(11)[i].log.directory[6] == "b")
            # The folder with the metadata must not fail. So the failing rename is always in /data/b.
            if fault == "the new folder":
                assert await house.move("/data/a", house.index) is ErrorCode.none
                await house.moved("/data/a")
            await house.produce(20, "before")
            source, target = house.place(), house.other()
            failed: list[str] = []
            whole = MountedDisk.rename

            def rename(disk: MountedDisk, before: str, after: str) -> None:
                is_first = fault == "the old folder"
                if (
                    not failed
                    and before.startswith("/data/b/")
                    and after.endswith("-delete" if is_first else f"/t-{house.index}")
                ):
                    failed.append(before)
                    raise DiskError(errno.EIO, "Input/output error", before)
                whole(disk, before, after)

            monkeypatch.setattr(MountedDisk, "rename", rename)
            assert await house.move(target, house.index) is ErrorCode.none
            await house.cluster.until(lambda: bool(failed))
            await house.cluster.until(lambda: list(house.rows()[house.index].isr) == [12])
            assert house.index not in house.hosted(11)
            await house.restart(11)
            # If the disk fails before the first rename, the copy is started again. If it fails after the
            # first rename, the exchange of the two logs is completed.
            await house.moved(target)
            assert source != target
            assert len(set(house.contents())) == 1
            assert house.hosted(11)[house.index].log.log_end_offset == 20

        world.run(story())


@pytest.mark.parametrize("target", ["/data/a", "/data/b"])
def test_a_request_during_an_exchange_waits_for_its_end(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the folders of a move are exchanged, an administrator requests the move back."""
    with World(7) as world:
        house = MovingHouse(world)
        exchanges: list[str] = []
        whole = FutureLogs.exchange

        async def exchange(self: FutureLogs, move: LogMove) -> None:
            exchanges.append(move.target.path)
            await asyncio.sleep(1)
            await whole(self, move)

        monkeypatch.setattr(FutureLogs, "exchange", exchange)

        async def story() -> None:
            await house.begin()
            house.index = next(
                i for i, each in house.hosted(11).items() if not each.log.directory.startswith(target)
            )
            await house.produce(20, "before")
            source = house.place()
            assert await house.move(target, house.index) is ErrorCode.none
            await house.cluster.until(lambda: exchanges == [target])
            assert await house.move(source, house.index) is ErrorCode.none
            await house.cluster.until(lambda: exchanges == [target, source])
            await house.moved(source)
            assert len(set(house.contents())) == 1
            assert len(house.hosted(11)) == 4

        world.run(story())


def test_a_new_topic_waits_for_the_exchange_of_a_deleted_topic_with_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic is deleted and created again while the folders of a move are exchanged. Otherwise the exchange
    would rename the folder of the new topic, or replace its log by the log of the deleted topic."""
    with World(9) as world:
        house = MovingHouse(world)
        exchanges: list[str] = []
        whole = FutureLogs.exchange

        async def exchange(self: FutureLogs, move: LogMove) -> None:
            exchanges.append("begins")
            await asyncio.sleep(5)
            await whole(self, move)
            exchanges.append("ends")

        monkeypatch.setattr(FutureLogs, "exchange", exchange)

        def ends() -> list[list[int]]:
            return [[each.log.log_end_offset for each in house.hosted(one).values()] for one in (11, 12)]

        async def story() -> None:
            await house.begin()
            await house.produce(20, "before")
            assert await house.move(house.other()) is ErrorCode.none
            await house.cluster.until(lambda: exchanges == ["begins"])
            await house.create_again()
            await asyncio.sleep(2)
            assert exchanges == ["begins"]
            assert len(house.hosted(11)) == 3
            await house.cluster.until(lambda: exchanges == ["begins", "ends"])
            await house.in_sync()
            await house.produce(5, "after")
            assert ends() == [[5] * 4] * 2
            found = await house.ask(11, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
            assert [each.error_code for each in found.results] == [ErrorCode.none] * 2
            await house.restart(11)
            await house.in_sync()
            assert ends() == [[5] * 4] * 2

        world.run(story())


def test_a_leader_whose_proposal_is_in_progress_does_not_move() -> None:
    """After a move the replica leads in the same epoch again, and no longer knows its proposal. The
    controller may commit the proposal later. The watermark could already be higher than the end of the log of
    the proposed follower."""
    with World(10) as world:
        house = MovingHouse(world)

        def cut(one: str, other: str) -> None:
            world.network.cut(one, other)
            world.network.cut(other, one)

        async def story() -> None:
            await house.begin()
            house.index = next(i for i, row in enumerate(house.rows()) if row.leader == 11)
            await house.produce(5, "before")
            source, target = house.place(), house.other()
            cut("node-11", "node-12")
            await house.produce_with_times(5, "during")
            await house.cluster.until(lambda: list(house.rows()[house.index].isr) == [11])
            world.network.heal_all()
            cut("node-11", "node-1")
            await house.cluster.until(
                lambda: house.hosted(11)[house.index].check_in_sync().pending is not None
            )
            assert await house.move(target, house.index) is ErrorCode.none
            await asyncio.sleep(2)
            assert house.place() == source
            assert house.hosted(11)[house.index].check_in_sync().pending is not None
            world.network.heal_all()
            await house.moved(target)
            await house.cluster.until(lambda: len(set(house.contents())) == 1)

        world.run(story())


def test_impossible_moves_between_directories_are_refused() -> None:
    with World(6) as world:
        house = MovingHouse(world)

        async def story() -> None:
            await house.begin()
            assert await house.move(house.place()) is ErrorCode.none
            assert await house.move("/data/c") is ErrorCode.log_dir_not_found
            assert await house.move("/data/a", 99) is ErrorCode.replica_not_available
            assert not await house.futures()
            house.disk(11).failed_folders.add("/data/b")
            await house.produce(1, "during")
            await house.cluster.until(lambda: len(house.hosted(11)) == 2)
            inside = next(i for i in range(4) if i not in house.hosted(11))
            assert await house.move("/data/b", next(iter(house.hosted(11)))) is ErrorCode.kafka_storage_error
            assert await house.move("/data/a", inside) is ErrorCode.kafka_storage_error

        world.run(story())
