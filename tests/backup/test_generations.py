"""A node of an older generation neither writes nor deletes, and reports the reason."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

import pytest

from moldau.backup.store_generations import GenerationFence, begin_generation
from moldau.objects import MemoryStorage
from moldau.objects.retrying import RetryingStorage
from moldau.objects.storage import StorageError
from moldau.runtime import Machine
from moldau.runtime.buffers import Buffer
from moldau.simulation.world.world import World
from moldau.tiered.metadata.segments import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from moldau.tiered.storage.foreign_storage_manager import ForeignStorageManager
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import LogSegmentData, RemoteStorageError

LEASE_S = 20.0
SEGMENT = RemoteLogSegmentMetadata(
    RemoteLogSegmentId.of(TopicIdPartition(UUID(int=1), "t", 0), UUID(int=2)),
    *(0, 9, 1, 1, 1, 3),
    leader_epochs=(EpochStart(0, 0),),
)
DATA = LogSegmentData(b"abc", b"", b"", None, b"", b"")


class OldNode:
    """A node of generation 0, with its store, and with the reasons that it has reported for its refusals."""

    generation = 0

    def __init__(self) -> None:
        machine = Machine.real()
        self.memory = MemoryStorage(machine.clock)
        self.reasons: list[str] = []
        self.fence = GenerationFence(
            self.memory, lambda: self.generation, lambda: 0.0, self.reasons.append, LEASE_S
        )
        self.fence.has_metadata = True
        self.storage = RetryingStorage(self.memory, machine.entropy)
        self.tier = ObjectStorageManager(self.memory)
        self.foreign = ForeignStorageManager(ObjectStorageManager(self.memory), "a plug-in")
        self.storage.fence = self.tier.fence = self.foreign.fence = self.fence

    async def restore(self) -> None:
        await begin_generation(self.memory, 1, "c")


Change = Callable[[OldNode], Awaitable[object]]
WRITES: list[Change] = [
    lambda node: node.storage.upload("wal/x", b"x", 1),
    lambda node: node.tier.copy_log_segment_data(SEGMENT, DATA),
    lambda node: node.tier.copy_attempt(SEGMENT, DATA, "attempt"),
    lambda node: node.foreign.copy_log_segment_data(SEGMENT, DATA),
]
DELETIONS: list[Change] = [
    lambda node: node.storage.delete(["wal/x"]),
    lambda node: node.tier.delete_log_segment_data(SEGMENT),
    lambda node: node.tier.delete_objects(["tiered/x"]),
    lambda node: node.foreign.delete_log_segment_data(SEGMENT),
]


def play(story: Callable[[OldNode], Awaitable[None]]) -> None:
    async def run() -> None:
        await story(OldNode())

    with World(1) as world:
        world.run(run())


async def _refused(node: OldNode, change: Change) -> None:
    before = dict(node.memory._objects)
    with pytest.raises((StorageError, RemoteStorageError), match="of generation 0: it may neither write"):
        await change(node)
    assert node.memory._objects == before
    assert "restored from its object store" in node.reasons[-1]


@pytest.mark.parametrize("change", DELETIONS)
def test_an_old_node_deletes_nothing(change: Change) -> None:
    async def story(node: OldNode) -> None:
        await change(node)
        await node.restore()
        await _refused(node, change)

    play(story)


def test_an_old_node_does_not_repeat_a_deletion_after_a_restore() -> None:
    """The first attempt fails, and the cluster is restored before the second attempt."""

    async def story(node: OldNode) -> None:
        await node.storage.upload("wal/x", b"x", 1)
        deleted, attempts = node.memory.delete, 0

        async def failing_once(keys: Collection[str]) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                await node.restore()
                raise StorageError("busy", transient=True)
            await deleted(keys)

        node.memory.delete = failing_once  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="of generation 0: it may neither write"):
            await node.storage.delete(["wal/x"])
        assert attempts == 1

    play(story)


@pytest.mark.parametrize("change", [*WRITES, *DELETIONS])
def test_a_restored_node_changes_no_store_without_its_generation(change: Change) -> None:
    """The cluster was restored from a copy of the bucket, and the node has the URL of the original."""

    async def story(node: OldNode) -> None:
        node.generation = 1
        before = dict(node.memory._objects)
        with pytest.raises((StorageError, RemoteStorageError), match="not the store of the restored cluster"):
            await change(node)
        assert node.memory._objects == before
        assert node.reasons == []
        await node.restore()
        await change(node)

    play(story)


@pytest.mark.parametrize("change", WRITES)
def test_an_old_node_writes_nothing_after_its_lease(change: Change) -> None:
    async def story(node: OldNode) -> None:
        await change(node)
        await node.restore()
        await asyncio.sleep(LEASE_S + 1)
        await _refused(node, change)
        await _refused(node, change)

    play(story)


def test_an_upload_that_outlasts_its_lease_does_not_succeed() -> None:
    """A restore waits until the leases of old nodes have ended, and then lists the objects. If an upload of
    an old node ends after that, the list may lack the uploaded object. Therefore the upload must fail."""

    async def story(node: OldNode) -> None:
        stored = node.memory.upload

        async def slow(key: str, data: Buffer, length: int) -> None:
            await asyncio.sleep(0.25 * LEASE_S)
            await stored(key, data, length)

        node.memory.upload = slow  # type: ignore[method-assign]
        await node.storage.upload("wal/x", b"x", 1)
        await asyncio.sleep(0.54 * LEASE_S)
        uploading = asyncio.ensure_future(node.storage.upload("wal/y", b"x", 1))
        await asyncio.sleep(0)
        node.memory.upload = stored  # type: ignore[method-assign]
        await node.restore()
        with pytest.raises(StorageError, match="of generation 0: it may neither write"):
            await uploading

    play(story)


def test_uploads_share_a_check_of_the_generation_and_begin_the_next_check_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async def slow(storage: object) -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(1)
        return 0

    async def story(node: OldNode) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(node.fence.before_upload() for _ in range(10)))
        assert looks == 1
        for expected in (2, 3):
            # The lease is nearly over. All uploads continue, and one of them reads the latest generation from
            # the store.
            await asyncio.sleep(LEASE_S * 0.85)
            began_s = loop.time()
            await asyncio.gather(*(node.fence.before_upload() for _ in range(10)))
            assert loop.time() - began_s < 0.1
            await asyncio.sleep(2)
            assert looks == expected

    monkeypatch.setattr("moldau.backup.store_generations.latest_generation", slow)
    play(story)


def test_a_node_whose_metadata_are_not_complete_waits() -> None:
    async def story(node: OldNode) -> None:
        node.fence.has_metadata = False
        await node.restore()
        with pytest.raises(StorageError) as refusal:
            await node.fence.before_delete()
        assert refusal.value.transient
        assert node.reasons == []

    play(story)


def test_an_upload_checks_the_generation_once_in_a_lease() -> None:
    async def story(node: OldNode) -> None:
        looks = 0
        listed = node.memory.list

        def counting(prefix: str, *, start_after: str = "") -> object:
            nonlocal looks
            looks += 1
            return listed(prefix, start_after=start_after)

        node.memory.list = counting  # type: ignore[assignment, method-assign]
        for _ in range(30):
            await node.storage.upload("wal/x", b"x", 1)
            await asyncio.sleep(1.0)
        assert looks == 2

    play(story)
