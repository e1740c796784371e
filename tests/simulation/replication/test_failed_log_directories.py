"""Brokers with two log directories in virtual time. If one directory fails, only its own replicas
go offline."""

import asyncio

import pytest
from two_directories import COUNT, PROPERTIES, House

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.runtime import ErrorCode
from moldau.simulation.world.world import World

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


def test_new_partitions_are_spread_over_the_directories_and_the_metadata_name_them() -> None:
    with World(3) as world:
        house = House(world)

        async def story() -> None:
            await house.begin()
            for broker in (11, 12):
                ids = [row.directory_of(broker) for row in house.rows()]
                for path in ("/data/a", "/data/b"):
                    assert ids.count(house.directory_id(broker, path)) == 2
                for index, each in house.hosted(broker).items():
                    path = each.log.directory.rpartition("/")[0]
                    assert house.directory_id(broker, path) == ids[index]

        world.run(story())


def test_a_failed_directory_takes_only_its_replicas_offline() -> None:
    with World(4) as world:
        house = House(world)
        cluster = house.cluster

        async def story() -> None:
            await house.begin()
            await house.produce(5, "before")
            failed_id = house.directory_id(11, "/data/b")
            inside = {i for i, row in enumerate(house.rows()) if row.directory_of(11) == failed_id}
            house.disk(11).failed_folders.add("/data/b")
            await house.produce(5, "during")
            await cluster.until(lambda: all(house.rows()[i].leader == 12 for i in inside))
            for index, row in enumerate(house.rows()):
                assert set(row.isr) == ({12} if index in inside else {11, 12})
            assert set(house.hosted(11)) == set(range(COUNT)) - inside

            request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
            topic = (await house.ask(12, ApiKey.METADATA, 9, request)).topics[0]
            for shown in topic.partitions:
                assert list(shown.offline_replicas) == ([11] if shown.partition_index in inside else [])
            found = await house.ask(11, ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
            codes = {each.log_dir: each.error_code for each in found.results}
            assert codes == {"/data/a": ErrorCode.none, "/data/b": ErrorCode.kafka_storage_error}

            # The folder still cannot be read. The logs of this folder must not be created again in the other
            # folder.
            await house.restart(11)
            await house.produce(5, "after")
            assert set(house.hosted(11)) == set(range(COUNT)) - inside
            names = set(house.disk(11).volume.root.entries["data"].entries["a"].entries)
            assert not {f"t-{index}" for index in inside} & names
            assert all(house.rows()[i].directory_of(11) == failed_id for i in inside)

            # The disk works again. It still has the records that were written to it.
            house.disk(11).failed_folders.clear()
            await house.restart(11)
            await house.in_sync()
            assert set(house.hosted(11)) == set(range(COUNT))
            for broker in (11, 12):
                assert [each.log.log_end_offset for each in house.hosted(broker).values()] == [15] * COUNT

        world.run(story())


def test_a_replaced_directory_gets_its_replicas_again() -> None:
    with World(5) as world:
        house = House(world)
        cluster = house.cluster

        async def story() -> None:
            await house.begin()
            await house.produce(5, "before")
            house.disk(11).failed_folders.add("/data/b")
            await house.produce(1, "during")
            old_id = house.directory_id(11, "/data/b")
            cluster.kill(11)
            house.disk(11).failed_folders.clear()
            house.disk(11).volume.root.entries["data"].entries["b"].entries.clear()
            cluster.start(11)
            await cluster.until(lambda: 11 in cluster.nodes)
            await house.in_sync()
            new_id = house.directory_id(11, "/data/b")
            assert new_id != old_id
            ids = [row.directory_of(11) for row in house.rows()]
            assert ids.count(new_id) == 2
            assert old_id not in ids
            for each in house.hosted(11).values():
                assert each.log.log_end_offset == 6

        world.run(story())


def test_a_topic_is_created_again_while_the_directory_of_its_replica_is_offline() -> None:
    """The new topic has its replica in the other directory. When the failed directory works again, it still
    contains the replica of the deleted topic."""
    with World(8) as world:
        house = House(world)

        def ends() -> list[list[int]]:
            return [[each.log.log_end_offset for each in house.hosted(one).values()] for one in (11, 12)]

        async def story() -> None:
            await house.begin()
            await house.produce(5, "before")
            inside = set(house.hosted(11))
            house.disk(11).failed_folders.add("/data/b")
            await house.produce(1, "during")
            await house.cluster.until(lambda: len(house.hosted(11)) == 2)
            inside -= set(house.hosted(11))
            await house.create_again()
            await house.cluster.until(lambda: len(house.hosted(11)) == COUNT)
            await house.in_sync()
            await house.produce(3, "after")
            house.disk(11).failed_folders.clear()
            await house.restart(11)
            await house.cluster.until(lambda: len(house.hosted(11)) == COUNT)
            await house.in_sync()
            assert ends() == [[3] * COUNT] * 2
            names = house.disk(11).volume.root.entries["data"].entries["b"].entries
            kept = {name.split(".")[0] for name in names if name.endswith("-stray")}
            assert kept == {f"t-{index}" for index in inside}

        world.run(story())


def test_the_broker_stops_when_the_directory_of_the_metadata_fails() -> None:
    with World(6) as world:
        house = House(world)

        async def story() -> None:
            await house.begin()
            house.disk(11).failed_folders.add("/data/a")
            process = house.world.host("node-11").process
            await house.cluster.until(lambda: process.main.done())
            assert "/data/a" in str(process.main.exception())
            house.cluster.kill(11)
            await house.cluster.until(lambda: all(row.leader == 12 for row in house.rows()))
            await house.produce(2, "after")
            house.cluster.start(11)
            await asyncio.sleep(5)
            process = house.world.host("node-11").process
            assert process.main.done()
            assert "cannot be read" in str(process.main.exception())

        world.run(story())


def test_a_broker_stops_when_no_controller_learns_of_the_failed_directory_in_time() -> None:
    with World(7) as world:
        house = House(world)
        house.cluster.properties[11] = {**PROPERTIES, "log.dir.failure.timeout.ms": "8000"}

        async def story() -> None:
            await house.begin()
            main = {each: house.world.host(f"node-{each}").process.main for each in (11, 12)}
            # A heartbeat of broker 12 reports its failed directory to the controller.
            house.disk(12).failed_folders.add("/data/b")
            await house.cluster.until(lambda: len(house.hosted(12)) == COUNT / 2)
            await asyncio.sleep(10)
            house.cluster.kill(1)
            house.disk(11).failed_folders.add("/data/b")
            await house.cluster.until(lambda: len(house.hosted(11)) == COUNT / 2)
            await asyncio.sleep(6)
            assert not main[11].done()
            await asyncio.sleep(4)
            assert "log.dir.failure.timeout.ms" in str(main[11].exception())
            await asyncio.sleep(30)
            assert not main[12].done()

        world.run(story())
