"""An object store in a folder. The disk of this folder loses unsynced data."""

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from storage_fakes import collect

from moldau.objects import FileStorage, StorageError
from moldau.objects.file_storage import LEFTOVER_AGE_MS
from moldau.runtime import InlineWorkers, Machine, SeededEntropy, SystemClock
from moldau.runtime.files.local_file import LocalFile
from moldau.simulation.world.disks.disk import DiskFault, SimulatedDisk
from moldau.simulation.world.process import Process

ROOT = "/data/objects"


def _open(device: SimulatedDisk) -> FileStorage:
    disk = device.mount(Process("test"))
    return FileStorage(Machine(SystemClock(), SeededEntropy(1), disk, InlineWorkers()), ROOT)


def _device(seed: int) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), SystemClock().now_ms, lambda _event: None)


@pytest.mark.parametrize("seed", range(20))
def test_a_completed_upload_survives_a_loss_of_power(seed: int) -> None:
    async def main() -> None:
        device = _device(seed)
        storage = _open(device)
        for number in range(5):
            await storage.upload(f"wal/hour-{number % 2}/{number}", bytes(3_000), 3_000)
        device.crash()
        after = _open(device)
        assert len(await collect(after, "wal/")) == 5
        for number in range(5):
            assert bytes(await after.fetch(f"wal/hour-{number % 2}/{number}", 0, 3_000)) == bytes(3_000)
        await after.upload("wal/hour-0/more", b"1", 1)

    asyncio.run(main())


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_dir", "open"])
def test_a_failed_upload_leaves_no_incomplete_object(operation: str) -> None:
    async def main() -> None:
        device = _device(1)
        storage = _open(device)
        await storage.check()
        device.faults.append(DiskFault(operation, 5))
        with pytest.raises(StorageError) as caught:
            await storage.upload("wal/a", bytes(100_000), 100_000)
        assert caught.value.transient
        for info in await collect(storage, "wal/"):
            assert info.size_bytes == 100_000
        await storage.upload("wal/a", bytes(100_000), 100_000)
        device.crash()
        assert [info.size_bytes for info in await collect(_open(device), "wal/")] == [100_000]

    asyncio.run(main())


class _LaterClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_files_of_killed_uploads_are_deleted_with_their_objects_or_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        clock = _LaterClock()
        machine = replace(Machine.real(), clock=clock, workers=InlineWorkers())
        storage = FileStorage(machine, str(tmp_path))
        await storage.upload("tiered/a", b"1", 1)
        for name in ("a.0", "a.17", "a.b.2", "b.3"):
            (tmp_path / "tiered" / f"{name}.uploading").write_bytes(bytes(10))

        def left() -> list[str]:
            return sorted(path.name for path in (tmp_path / "tiered").iterdir())

        await storage.delete(["tiered/a", "nowhere/c"])
        assert left() == ["a.b.2.uploading", "b.3.uploading"]
        assert await collect(storage, "tiered/") == []
        assert len(left()) == 2, "they may be under way, in another process"
        clock.ahead_ms = 2 * LEFTOVER_AGE_MS
        assert await collect(storage, "tiered/") == []
        assert left() == []

    asyncio.run(main())


def test_an_upload_that_timed_out_does_not_replace_a_later_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload timed out while its thread was still blocked. The next attempt succeeds, and the memory of
    both attempts is reused."""
    sleeping, awake = threading.Event(), threading.Event()
    fill = LocalFile.fill

    def sleep_first(self: LocalFile, content: memoryview) -> None:
        if not sleeping.is_set():
            sleeping.set()
            assert awake.wait(60)
        fill(self, content)

    monkeypatch.setattr(LocalFile, "fill", sleep_first)

    async def main() -> None:
        machine = Machine.real()
        storage = FileStorage(machine, str(tmp_path))
        memory = bytearray(b"good")
        first = asyncio.create_task(storage.upload("wal/a", memory, 4))
        assert await asyncio.to_thread(sleeping.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await storage.upload("wal/a", memory, 4)
        memory[:] = b"evil"
        awake.set()
        machine.workers.close()

    asyncio.run(main())
    assert [path.name for path in (tmp_path / "wal").iterdir()] == ["a"]
    assert (tmp_path / "wal" / "a").read_bytes() == b"good"
