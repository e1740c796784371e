"""Checks the objects of diskless topics. If a coordinator refers to an object, the object must exist. Every
object must have such a reference."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    BatchCoordinate,
    DescribedPartition,
    FindBatchesCall,
    PartitionToFind,
)
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.diskless.object_keys import parse_object_key
from moldau.records.batch import parse_header
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.node import ServerNode
from moldau.server.subsystems.diskless.subsystem import DisklessSubsystem
from moldau.simulation.checks.answers_checks import check_budgets, check_defects
from moldau.simulation.history import History
from moldau.simulation.world.disks.lost_files import lose_databases, lose_folders
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World

T = TypeVar("T")

QUIET_S = 220.0
"""A time that is long enough for three steps. First, orphans become old enough for the scan, which takes 180
s. Then the scan, which runs every 20 s, finds them. Finally, files that were handed over are deleted."""
SETTLE_LIMIT_S = 120.0
_SNAPSHOT_PAUSE_S = 0.1


class DisklessAfterlife:
    """The checks at the end of a diskless scenario. The attribute ``exhibit`` of the node's process must be
    the node.
    """

    def __init__(self, topics: tuple[str, ...], *, checks_leaks: bool = True) -> None:
        """Without ``checks_leaks``, unreferenced objects are allowed. This is needed after a clock went back,
        because some objects are then not old enough yet."""
        self._topics = topics
        self._checks_leaks = checks_leaks

    async def quiet(self, world: World, node: Host, history: History) -> None:
        """Wait for the grace periods and some rounds of background work."""
        history.note("quiet")
        await asyncio.sleep(QUIET_S)

    async def check(self, world: World, node: Host, history: History) -> None:
        assert node.process is not None
        await check_budgets(node, history)
        check_defects(node, history)
        checker = ObjectsChecker(world, history)
        await checker.check(node)
        if self._checks_leaks:
            checker.check_leaks()

    async def spoil(self, world: World, node: Host, history: History) -> None:
        history.note("cache and databases are lost")
        node.kill()
        lose_folders(node, self._topics)
        lose_databases(node)


class ObjectsChecker:
    """Compares the objects in the store with the coordinators' references to them. It is called for each node
    of a cluster, one after another."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._objects = world.object_store.objects
        self._history = history
        self._live: set[str] = set()
        self._described: dict[UUID, str] = {}
        self._topic_ids: set[UUID] | None = None
        """The topics that are in the metadata of all checked nodes."""
        self.coordinator_ids: set[int] = set()
        """The coordinators that were checked."""
        self._opinions: dict[str, list[str]] = {}

    async def check(self, node: Host) -> None:
        """Check the coordinators that a node leads. The check runs in the node's own process."""
        assert node.process is not None
        server = cast(ServerNode, node.process.exhibit)
        coordinators = server.get(DisklessSubsystem).coordinators
        assert server.metadata is not None
        topic_ids = {topic.topic_id for topic in server.metadata.publisher.image.topics}
        self._topic_ids = topic_ids if self._topic_ids is None else self._topic_ids & topic_ids
        checking = self._check_all(coordinators)
        context = node.process.context()
        task = context.run(self._world.loop.create_task, checking, name="check of objects", context=context)
        async with asyncio.timeout(SETTLE_LIMIT_S):
            await task

    def check_leaks(self) -> None:
        """After all nodes were checked, check that every object is referenced, and that no coordinator has
        batches of a deleted topic."""
        for topic_id, name in self._described.items():
            if topic_id not in (self._topic_ids or ()):
                self._history.violate(f"a coordinator has topic {name} ({topic_id}), which is deleted")
        for key in sorted(self._objects):
            if parse_object_key(key) is not None and key not in self._live:
                self._history.violate(f"object {key} has leaked: {'; '.join(self._opinions.get(key, ()))}")

    async def _check_all(self, coordinators: DisklessCoordinator) -> None:
        for coordinator_id in coordinators.coordinator_ids:
            await coordinators.until_loaded(coordinator_id)
            checking = _CoordinatorCheck(coordinators, coordinator_id, self._objects, self._history)
            self.coordinator_ids.add(coordinator_id)
            for partition in await checking.run(self._live):
                self._described[partition.topic_id] = partition.topic_name
        for key in sorted(self._objects.keys() - self._live):
            for coordinator_id in coordinators.coordinator_ids:
                asking = partial(coordinators.describe_files, coordinator_id, [key])
                opinion = (await until_answered(asking))[0]
                self._opinions.setdefault(key, []).append(str(opinion))


async def described_partitions(
    coordinators: DisklessCoordinator, coordinator_id: int
) -> list[DescribedPartition]:
    """Return all partitions of a coordinator."""
    return await until_answered(lambda: coordinators.describe_topics(coordinator_id))


async def until_answered(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Ask a coordinator. While it writes a snapshot, the question is repeated, as clients do it."""
    while True:
        try:
            return await ask()
        except KafkaError as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                raise
            await asyncio.sleep(_SNAPSHOT_PAUSE_S)


class _CoordinatorCheck:
    """Checks one coordinator that a node leads."""

    def __init__(
        self,
        coordinators: DisklessCoordinator,
        coordinator_id: int,
        objects: Mapping[str, bytes],
        history: History,
    ) -> None:
        self._coordinators = coordinators
        self._coordinator_id = coordinator_id
        self._objects = objects
        self._history = history

    async def run(self, live: set[str]) -> list[DescribedPartition]:
        """Check the coordinator. Add to ``live`` the keys of the objects that still have batches. Return the
        coordinator's partitions."""
        coordinator_id = self._coordinator_id
        batches: Counter[str] = Counter()
        bytes_used: Counter[str] = Counter()
        described = await described_partitions(self._coordinators, coordinator_id)
        for partition in described:
            count = 0
            async for batch in self._batches(coordinator_id, partition):
                count += 1
                if batch.marker is not None:
                    continue
                batches[batch.object_key] += 1
                bytes_used[batch.object_key] += batch.size_bytes
                self._check_batch(batch)
            if count != partition.batches:
                self._violate(coordinator_id, f"{partition} has {count} batches")
        listing = partial(self._coordinators.list_files, coordinator_id, limit=1_000_000)
        files = {
            file.object_key: (file.live_batches, file.used_bytes) for file in await until_answered(listing)
        }
        for key in sorted(files.keys() | batches.keys()):
            expected = (batches[key], bytes_used[key])
            if files.get(key) != expected:
                self._violate(coordinator_id, f"{key} is counted as {files.get(key)}, not as {expected}")
        live.update(batches)
        return described

    async def _batches(
        self, coordinator_id: int, partition: DescribedPartition
    ) -> AsyncIterator[BatchCoordinate]:
        """Return all batches of a partition in the WAL, in order."""
        offset = first_offset = partition.wal_start_offset
        topic_id, index = partition.topic_id, partition.partition_index
        while offset < partition.high_watermark:
            call = FindBatchesCall([PartitionToFind(topic_id, index, offset)])
            found = (await self._coordinators.find_batches(coordinator_id, call))[0]
            if found.error is not ErrorCode.none or not found.batches:
                self._violate(
                    coordinator_id, f"{partition.topic_name}-{index} has no batch at {offset}: {found}"
                )
                return
            for batch in found.batches:
                is_first = offset == first_offset
                if batch.base_offset > offset or (batch.base_offset < offset and not is_first):
                    self._violate(coordinator_id, f"{batch} stands where {offset} was next")
                yield batch
                offset = batch.last_offset + 1

    def _check_batch(self, batch: BatchCoordinate) -> None:
        content = self._objects.get(batch.object_key)
        if content is None:
            self._history.violate(f"object {batch.object_key} is missing, which holds {batch}")
            return
        end = batch.byte_offset + batch.size_bytes
        header = parse_header(content[batch.byte_offset : end])
        records = batch.last_offset - batch.base_offset + 1
        if end > len(content) or header.size_bytes != batch.size_bytes or header.records_count != records:
            self._history.violate(f"{batch} does not describe what stands there: {header}")

    def _violate(self, coordinator_id: int, what: str) -> None:
        self._history.violate(f"coordinator {coordinator_id}: {what}")
