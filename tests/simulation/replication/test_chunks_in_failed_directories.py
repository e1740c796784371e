"""Inactive chunks on brokers with two log directories, in virtual time. If a directory fails, the broker
leaves the in-sync sets of the chunks in this directory."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from two_directories import COUNT, House

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksTopicPartition
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode
from moldau.simulation.world.world import World
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NAMES = [f"t-{index}.00000000000000000000-chunk" for index in range(COUNT)]


async def begin(house: House) -> None:
    """Create a partition with an inactive chunk of five records in each directory."""
    await house.begin()
    update = FeatureUpdateKey(feature="moldau.chunk.version", max_version_level=1, upgrade_type=1)
    found = await house.ask(
        11, ApiKey.UPDATE_FEATURES, 2, UpdateFeaturesRequest(feature_updates=[update], timeout_ms=9000)
    )
    assert found.error_code is ErrorCode.none
    await house.produce(5, "before")
    for index, row in enumerate(house.rows()):
        wanted = CreateChunksTopicPartition(topic_name="t", partition_id=index, broker_ids=[12, 11])
        request = CreateChunksRequest(topic_partitions=[wanted])
        found = await house.ask(row.leader, request.API_KEY, 0, request)  # type: ignore[arg-type]
        assert found.results[0].error_code is ErrorCode.none, found
    await house.in_sync()
    await house.cluster.until(lambda: all(len(folders(house, broker)) == COUNT for broker in (11, 12)))


def folders(house: House, broker: int) -> dict[str, str]:
    """The folders of inactive chunks on a broker, and the log directories in which they are."""
    data = house.disk(broker).volume.root.entries["data"].entries
    return {name: each for each in ("a", "b") for name in data[each].entries if name.endswith("-chunk")}


def in_sync(house: House) -> list[set[int]]:
    return [set(row.chunks[0].isr) for row in house.rows()]


def run(seed: int, story: Callable[[House], Awaitable[None]]) -> None:
    with World(seed) as world:
        world.run(story(House(world)))  # type: ignore[arg-type]


def test_chunks_of_a_failed_directory_leave_the_in_sync_sets_until_it_works_again() -> None:
    async def story(house: House) -> None:
        await begin(house)
        inside = {index for index in range(COUNT) if folders(house, 11)[NAMES[index]] == "b"}
        assert 0 < len(inside) < COUNT
        reduced = [{12} if index in inside else {11, 12} for index in range(COUNT)]
        house.disk(11).failed_folders.add("/data/b")
        await house.produce(5, "during")
        await house.cluster.until(lambda: in_sync(house) == reduced)

        # The chunks must not be copied to the other directory while their folders may still exist.
        await house.restart(11)
        await asyncio.sleep(10)
        assert in_sync(house) == reduced
        assert sorted(folders(house, 11)) == sorted(NAMES)

        house.disk(11).failed_folders.clear()
        await house.restart(11)
        await house.cluster.until(lambda: in_sync(house) == [{11, 12}] * COUNT)
        assert sorted(folders(house, 11)) == sorted(NAMES)

    run(4, story)


def test_chunks_in_a_directory_that_cannot_be_read_at_the_start_leave_the_in_sync_sets() -> None:
    async def story(house: House) -> None:
        await begin(house)
        inside = {index for index in range(COUNT) if folders(house, 11)[NAMES[index]] == "b"}
        house.cluster.kill(11)
        house.disk(11).failed_folders.add("/data/b")
        house.cluster.start(11)
        reduced = [{12} if index in inside else {11, 12} for index in range(COUNT)]
        await house.cluster.until(lambda: in_sync(house) == reduced)
        house.disk(11).failed_folders.clear()
        await house.restart(11)
        await house.cluster.until(lambda: in_sync(house) == [{11, 12}] * COUNT)

    run(5, story)


def test_the_chunks_of_a_failed_directory_are_reported_while_another_chunk_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[ChunkId] = []

    async def endless(self: ChunkStore, name: TopicPartition, chunk: ChunkId, *_: object) -> None:
        copied.append(chunk)
        await asyncio.get_running_loop().create_future()

    async def story(house: House) -> None:
        await begin(house)
        homes = [folders(house, 11)[name] for name in NAMES]
        lost = homes.index("a")
        house.cluster.kill(11)
        del house.disk(11).volume.root.entries["data"].entries["a"].entries[NAMES[lost]]
        monkeypatch.setattr(ChunkStore, "copy", endless)
        house.cluster.start(11)
        await house.cluster.until(lambda: bool(copied))
        assert in_sync(house)[lost] == {12}
        house.disk(11).failed_folders.add("/data/b")
        await house.produce(5, "during")
        reduced = [{12} if index == lost or homes[index] == "b" else {11, 12} for index in range(COUNT)]
        await house.cluster.until(lambda: in_sync(house) == reduced)
        assert len(copied) == 1

    run(7, story)


def test_chunks_of_a_replaced_directory_are_copied_again() -> None:
    async def story(house: House) -> None:
        await begin(house)
        house.disk(11).failed_folders.add("/data/b")
        await house.produce(1, "during")
        await house.cluster.until(lambda: {12} in in_sync(house))
        house.cluster.kill(11)
        house.disk(11).failed_folders.clear()
        house.disk(11).volume.root.entries["data"].entries["b"].entries.clear()
        house.cluster.start(11)
        await house.cluster.until(lambda: in_sync(house) == [{11, 12}] * COUNT)
        assert sorted(folders(house, 11)) == sorted(NAMES)

    run(6, story)
