"""The cache of remote segments' indexes: lookups, eviction, and its reaction to damage."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest
from segment_fakes import FINISHED, segment

from moldau.objects import MemoryStorage
from moldau.runtime import LocalDisk, Machine, SeededEntropy, SystemClock, ThreadWorkers
from moldau.runtime.buffers import Buffer
from moldau.storage.log.append_info import AbortedEntry
from moldau.storage.segments.transaction_index import decode_transactions, encode_transactions
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata
from moldau.tiered.reading import index_cache
from moldau.tiered.reading.index_cache import RemoteIndexCache
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager
from moldau.tiered.storage.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)

ABORTED = [AbortedEntry(7, 1010, 1020, 1005), AbortedEntry(9, 1001, 1030, 1001)]


class CountingManager(ObjectStorageManager):
    """The built-in storage manager, which also records requests."""

    fetched = 0

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> Buffer:
        self.fetched += 1
        await asyncio.sleep(0)
        return await super().fetch_index(metadata, index_type)


def indexed(*, extra: int = 0) -> LogSegmentData:
    """An index of batches. Their last offsets are 1009, 1019, …, 1099, their positions are 0, 100, …, and
    their timestamps ascend by 10."""
    offsets = b"".join(pack(">II", number * 10 + 9, number * 100) for number in range(10))
    times = b"".join(pack(">qI", 500 + number * 10, number * 10 + 9) for number in range(10))
    return LogSegmentData(
        log_segment=b"log",
        offset_index=offsets,
        time_index=times + b"".join(pack(">qI", 600 + n, 99) for n in range(extra)),
        transaction_index=encode_transactions(ABORTED),
        producer_snapshot=b"",
        leader_epochs=b"",
    )


@contextlib.asynccontextmanager
async def caching(
    manager: ObjectStorageManager, folder: Path, max_size_bytes: int = 1 << 20
) -> AsyncIterator[RemoteIndexCache]:
    workers = ThreadWorkers(2)
    machine = Machine(SystemClock(), SeededEntropy(1), LocalDisk(), workers)
    cache = RemoteIndexCache(machine, manager, f"{folder}/cache", max_size_bytes)
    try:
        await cache.start()
        yield cache
    finally:
        await cache.close()
        workers.close()


async def remote(
    manager: ObjectStorageManager, number: int = 1, data: LogSegmentData | None = None
) -> RemoteLogSegmentMetadata:
    metadata = segment(number, 1000, 1099, state=FINISHED, txn_index_empty=False)
    custom = await manager.copy_log_segment_data(metadata, data or indexed())
    return replace(metadata, custom_metadata=custom)


def new_manager() -> CountingManager:
    return CountingManager(MemoryStorage(SystemClock()))


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "cache"))


def test_offsets_and_timestamps_are_looked_up_in_the_index(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        async with caching(manager, tmp_path) as cache:
            of = await remote(manager)
            for offset, position in ((1000, 0), (1009, 0), (1018, 0), (1019, 100), (1055, 400), (5000, 900)):
                assert await cache.lookup_offset(of, offset) == position
            # In the batches up to offset 1029, no timestamp is later than 520.
            for timestamp, start, position in (
                (0, 1000, 0),
                (521, 1000, 200),
                (520, 1000, 100),
                (521, 1070, 600),
            ):
                assert await cache.lookup_timestamp(of, timestamp, start) == position
            assert await cache.aborted_transactions(of) == ABORTED
            assert manager.fetched == 3
            assert await cache.aborted_transactions(replace(of, txn_index_empty=True)) == ()

    asyncio.run(main())


def test_entries_of_aborted_transactions_are_decoded_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def decode(content: Buffer, path: str) -> list[AbortedEntry]:
        threads.append(threading.current_thread())
        return decode_transactions(content, path)

    monkeypatch.setattr(index_cache, "decode_transactions", decode)

    async def main() -> None:
        manager = new_manager()
        async with caching(manager, tmp_path) as cache:
            assert await cache.aborted_transactions(await remote(manager)) == ABORTED

    asyncio.run(main())
    assert threads
    assert threading.main_thread() not in threads


def test_a_segment_without_aborted_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        async with caching(manager, tmp_path) as cache:
            of = await remote(manager, data=replace(indexed(), transaction_index=None))
            assert list(await cache.aborted_transactions(of)) == []
            assert await cache.lookup_offset(replace(of, txn_index_empty=True), 1055) == 400

    asyncio.run(main())


def test_many_concurrent_requests_fetch_an_index_once(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        async with caching(manager, tmp_path) as cache:
            of = await remote(manager)
            first = asyncio.ensure_future(cache.lookup_offset(of, 1055))
            others = [asyncio.ensure_future(cache.lookup_offset(of, 1055)) for _ in range(5)]
            await asyncio.sleep(0)
            first.cancel()  # the first caller gives up, but the other callers get their result
            assert await asyncio.gather(*others) == [400] * 5
            assert manager.fetched == 3

    asyncio.run(main())


def test_a_restart_uses_the_existing_cache_files(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        of = await remote(manager)
        async with caching(manager, tmp_path) as cache:
            await cache.lookup_offset(of, 1055)
            size_bytes = cache.size_bytes
        (tmp_path / "cache" / "5_half.indexes.tmp").write_bytes(b"half")
        async with caching(manager, tmp_path) as cache:
            assert (len(cache), cache.size_bytes) == (1, size_bytes)
            assert await cache.lookup_offset(of, 1055) == 400
            assert await cache.aborted_transactions(of) == ABORTED
        assert manager.fetched == 3
        assert files(tmp_path) == [f"1000_{of.id.id}.indexes"]

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "absent", "another segment's"])
def test_a_damaged_file_is_fetched_again(tmp_path: Path, damage: str) -> None:
    async def main() -> None:
        manager = new_manager()
        of, other = await remote(manager), await remote(manager, 2)
        async with caching(manager, tmp_path) as cache:
            await cache.lookup_offset(of, 1055)
            await cache.lookup_offset(other, 1055)
        path = tmp_path / "cache" / f"1000_{of.id.id}.indexes"
        content = bytearray(path.read_bytes())
        async with caching(manager, tmp_path) as cache:
            if damage == "a bit":
                content[20] ^= 4
            elif damage == "cut":
                del content[100:]
            elif damage == "empty":
                content.clear()
            elif damage == "another segment's":
                content[:] = (tmp_path / "cache" / f"1000_{other.id.id}.indexes").read_bytes()
            path.write_bytes(content)
            if damage == "absent":
                path.unlink()
            assert await cache.lookup_offset(of, 1055) == 400
            assert manager.fetched == 9
        async with caching(manager, tmp_path) as cache:
            assert await cache.lookup_offset(of, 1055) == 400
            assert manager.fetched == 9

    asyncio.run(main())


def test_the_files_stay_within_their_bound_and_the_least_recently_used_go(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        remotes = [await remote(manager, number) for number in range(1, 6)]
        async with caching(manager, tmp_path) as probe:
            await probe.lookup_offset(remotes[0], 1055)
            size_bytes = probe.size_bytes
            probe.remove(remotes[0].id.id)
        async with caching(manager, tmp_path, size_bytes * 3) as cache:
            for of in remotes[:3]:
                await cache.lookup_offset(of, 1055)
            await cache.lookup_offset(remotes[0], 1055)
            await cache.lookup_offset(remotes[3], 1055)
            assert cache.size_bytes == size_bytes * 3
        assert files(tmp_path) == sorted(f"1000_{remotes[n].id.id}.indexes" for n in (0, 2, 3))
        async with caching(manager, tmp_path, size_bytes * 3) as cache:
            cache.resize(size_bytes)
            assert len(cache) == 1
            cache.resize(0)
            assert await cache.lookup_offset(remotes[4], 1055) == 400
            assert cache.size_bytes == 0
        assert files(tmp_path) == []

    asyncio.run(main())


def test_removed_partitions_are_freed_and_not_only_removed(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        first, second = await remote(manager), await remote(manager, 2)
        async with caching(manager, tmp_path) as cache:
            await cache.lookup_offset(first, 1055)
            cache.resize(cache.size_bytes)
            await cache.lookup_offset(second, 1055)
            assert manager.fetched == 6
            await cache.lookup_offset(second, 1055)
            assert manager.fetched == 6
            await cache.lookup_offset(first, 1055)
            assert manager.fetched == 9, "it was not kept in memory without its file"

    asyncio.run(main())


def test_a_deleted_segment_leaves_no_file(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        of, other = await remote(manager), await remote(manager, 2)
        async with caching(manager, tmp_path) as cache:
            await cache.lookup_offset(of, 1055)
            await cache.lookup_offset(other, 1055)
            await manager.delete_log_segment_data(of)
            cache.remove(of.id.id)
            with pytest.raises(RemoteResourceNotFoundError):
                await cache.lookup_offset(of, 1055)
        assert files(tmp_path) == [f"1000_{other.id.id}.indexes"]

    asyncio.run(main())


def test_an_index_with_a_partial_entry_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        manager = new_manager()
        of = await remote(manager, data=replace(indexed(), offset_index=b"12345"))
        async with caching(manager, tmp_path) as cache:
            with pytest.raises(RemoteStorageError, match="no whole entries"):
                await cache.lookup_offset(of, 1055)
        assert files(tmp_path) == []

    asyncio.run(main())


def test_reads_continue_when_the_index_cache_cannot_write_to_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        manager = new_manager()
        of = await remote(manager)
        (tmp_path / "cache").write_bytes(b"in the way")
        async with caching(manager, tmp_path) as cache:
            assert await cache.lookup_offset(of, 1055) == 400
            assert await cache.lookup_offset(of, 1055) == 400
            assert manager.fetched == 3
        assert "cannot be kept on the disk" in caplog.text

    asyncio.run(main())
