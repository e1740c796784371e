"""A real disk fails a sync or becomes read-only. After that, no record is acknowledged and no sync is
repeated."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plain_requests import Requests, values

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER
from moldau.runtime import ErrorCode, Machine
from moldau.runtime.files.disk import DiskError
from moldau.runtime.files.local_disk import LocalDisk
from moldau.server.node import ServerNode
from moldau.server.settings import development_config

LIMIT_S = 200
SYNCED = {
    "log.flush.interval.messages": "1",
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "100",
}


class Faults:
    """Faults of a disk. ``failing_sync`` and ``is_read_only`` determine the operations that fail. ``failed``
    has the files whose sync has failed, and ``synced_after_failure`` the files that the node tried to sync
    again."""

    def __init__(self) -> None:
        self.failing_sync: str | None = None
        self.is_read_only = False
        self.failed: list[str] = []
        self.synced_after_failure: list[str] = []

    def check_sync(self, path: str) -> None:
        if path in self.failed:
            # For a second sync the kernel would report success, although it has dropped the pages.
            self.synced_after_failure.append(path)
        elif self.failing_sync is not None and self.failing_sync in path:
            self.failed.append(path)
            raise DiskError(errno.EIO, os.strerror(errno.EIO), path)

    def check_write(self, path: str) -> None:
        if self.is_read_only:
            raise DiskError(errno.EROFS, os.strerror(errno.EROFS), path)


class FaultyFile:
    """A real file with injected faults."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def sync(self) -> None:
        self._faults.check_write(self._file.path)
        self._faults.check_sync(self._file.path)
        self._file.sync()

    def write_at(self, position: int, buffers: Any) -> int:
        self._faults.check_write(self._file.path)
        written: int = self._file.write_at(position, buffers)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FaultyDisk(LocalDisk):
    """Real files with injected faults."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Any:
        if create:
            self.faults.check_write(path)
        return FaultyFile(super().open(path, create=create, read_only=read_only), self.faults)

    def write_atomically(self, path: str, content: bytes) -> None:
        self.faults.check_write(path)
        self.faults.check_sync(path)
        super().write_atomically(path, content)

    def rename(self, source: str, target: str) -> None:
        self.faults.check_write(source)
        super().rename(source, target)

    def sync_dir(self, path: str) -> None:
        self.faults.check_write(path)
        super().sync_dir(path)


Story = Callable[[Requests, ServerNode, Faults], Awaitable[None]]


def play(folder: Path, story: Story, *, diskless: bool = False) -> None:
    async def life() -> None:
        disk = FaultyDisk()
        machine = replace(Machine.real(), disk=disk)
        config = development_config(str(folder), 0, SYNCED, diskless=diskless)
        node = ServerNode(config, machine, format_new=True)
        address = await node.start()
        try:
            async with Requests(str(address)) as client, asyncio.timeout(LIMIT_S):
                await story(client, node, disk.faults)
        finally:
            disk.faults.failing_sync = None
            await node.stop()

    asyncio.run(life())


async def produce_until_the_end(client: Requests, node: ServerNode, first: int) -> tuple[int, str]:
    """Produce records until the node fails. Returns the number of records that were acknowledged after the
    fault, and the reason of the failure."""
    count = 0

    async def produce() -> None:
        nonlocal count
        while True:
            await client.produce_values("t", b"%d" % (first + count))
            count += 1

    producing = asyncio.create_task(produce())
    reason = await node.failed()
    producing.cancel()
    await asyncio.gather(producing, return_exceptions=True)
    return count, reason


@pytest.mark.parametrize("diskless", [False, True])
@pytest.mark.parametrize("fault", ["sync", "read-only"])
def test_no_record_that_the_disk_refused_is_acknowledged(tmp_path: Path, diskless: bool, fault: str) -> None:
    acknowledged = 5

    async def fail(client: Requests, node: ServerNode, faults: Faults) -> None:
        nonlocal acknowledged
        await client.create("t")
        for number in range(acknowledged):
            await client.produce_values("t", b"%d" % number)
        if fault == "sync":
            faults.failing_sync = "/__diskless_metadata-0/0" if diskless else "/t-0/0"
        else:
            faults.is_read_only = True
        more, reason = await produce_until_the_end(client, node, acknowledged)
        acknowledged += more
        assert "offline" in reason or "failed" in reason
        faults.is_read_only = False
        # A repeated sync may succeed although the pages are lost.
        assert not [path for path in faults.synced_after_failure if path.endswith(".log")]

    async def read(client: Requests, node: ServerNode, faults: Faults) -> None:
        found = values(await client.read("t", 0, acknowledged))
        assert found[:acknowledged] == [b"%d" % number for number in range(acknowledged)]
        offset = await client.produce_values("t", b"more")
        assert offset >= acknowledged

    play(tmp_path / "data", fail, diskless=diskless)
    play(tmp_path / "data", read, diskless=diskless)


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_failed_sync_of_a_checkpoint_ends_the_node(tmp_path: Path, name: str) -> None:
    async def fail(client: Requests, node: ServerNode, faults: Faults) -> None:
        await client.create("t")
        await client.produce_values("t", b"0")
        faults.failing_sync = name
        more, reason = await produce_until_the_end(client, node, 1)
        assert name in reason
        acknowledged.append(1 + more)

    async def read(client: Requests, node: ServerNode, faults: Faults) -> None:
        found = values(await client.read("t", 0, acknowledged[0]))
        assert found[: acknowledged[0]] == [b"%d" % number for number in range(acknowledged[0])]

    acknowledged: list[int] = []
    play(tmp_path / "data", fail)
    play(tmp_path / "data", read)


def test_a_failed_sync_of_the_metadata_log_ends_the_node(tmp_path: Path) -> None:
    async def fail(client: Requests, node: ServerNode, faults: Faults) -> None:
        await client.create("kept")
        faults.failing_sync = "/__cluster_metadata-0/0"
        creating = asyncio.create_task(client.create("refused"))
        assert CLUSTER_METADATA_FOLDER in await node.failed()
        creating.cancel()
        outcome = (await asyncio.gather(creating, return_exceptions=True))[0]
        assert isinstance(outcome, BaseException)
        assert not [path for path in faults.synced_after_failure if path.endswith(".log")]

    async def look(client: Requests, node: ServerNode, faults: Faults) -> None:
        assert (await client.describe("kept")).error_code is ErrorCode.none

    play(tmp_path / "data", fail)
    play(tmp_path / "data", look)
