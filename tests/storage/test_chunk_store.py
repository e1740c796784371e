"""The folders of inactive chunks. A folder is created from a partition's log, found at a start, opened and
removed."""

import asyncio
import random
from typing import Any

import pytest
from chunk_stores import FIRST, NAME, TOPIC_ID, Copied, append, with_one_chunk

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.chunks.chunk_store import ChunkStore
from moldau.storage.critical_logs.recovery_report import RepairKind
from moldau.storage.folders.file_names import (
    chunk_folder,
    chunk_of,
    is_chunk_copy,
    is_stray_folder,
    partition_of,
)
from moldau.storage.log.auxiliary_state import AuxiliaryState
from moldau.storage.log.config import LogConfig
from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.log_manager import LogManager
from moldau.storage.log_manager_settings import LogManagerSettings


def test_the_name_of_a_chunk_gives_its_partition_and_start() -> None:
    name = chunk_folder(TopicPartition("a-b", 7), 42)
    assert name == "a-b-7.00000000000000000042-chunk"
    assert chunk_of(name) == (7, 42)
    assert partition_of(name) is None
    assert chunk_of("a-b-7") is None
    assert chunk_of(chunk_folder(TopicPartition("x" * 249, 12345), 2**62)) == (12345, 2**62)
    assert len(chunk_folder(TopicPartition("x" * 249, 12345), 2**62)) == 251
    one, other = (chunk_folder(TopicPartition("x" * 240 + end, 0), 0) for end in "ab")
    assert one != other
    assert chunk_of(one) == chunk_of(other) == (0, 0)


def test_a_carved_log_is_read_as_a_chunk_also_after_a_restart(box: Any) -> None:
    async def run() -> None:
        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        log = await get_or_create(logs, NAME, LogConfig(), TOPIC_ID)
        append(box, log, 10)
        store = ChunkStore(box.machine, logs)
        await store.carve(NAME, FIRST, 10)
        assert logs.get(NAME) is None
        assert FIRST in store
        log = await get_or_create(logs, NAME, LogConfig(), TOPIC_ID)
        await log.begin_behind_remote(AuxiliaryState(10, 0, [EpochEntry(0, 0)], ()))
        append(box, log, 5, epoch=1)
        chunk = await store.open(NAME, FIRST)
        assert (chunk.local_log_start_offset, chunk.log_end_offset) == (0, 10)
        assert chunk.read(3, 10**6, upper_bound_offset=10).next_offset == 10
        store.close()
        await logs.stop()

        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        store = ChunkStore(box.machine, logs)
        await store.load()
        found = logs.get(NAME)
        assert found is not None
        found.start.has_chunks = True
        log = logs.use(NAME, LogConfig())
        assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 10, 15)
        assert list(store) == [FIRST]
        assert (await store.open(NAME, FIRST)).log_end_offset == 10
        assert not logs.report.count(RepairKind.LOST)
        await store.drop(NAME, FIRST)
        assert FIRST not in store
        assert [each for each in box.disk.list("/data") if "-chunk" in each or "-delete" in each] == []
        await logs.stop()

    asyncio.run(run())


def test_a_chunk_in_a_failed_directory_is_not_counted(box: Any) -> None:
    async def run() -> None:
        logs, store = await with_one_chunk(box, 10)
        assert len(store) == 1
        logs.directories[0].offline_reason = "the disk has failed"
        assert len(store) == 0
        assert FIRST not in store

    asyncio.run(run())


def test_of_two_folders_of_a_chunk_one_is_put_aside_at_a_start(box: Any) -> None:
    """A chunk may have been copied to this broker again while a log directory could not be read."""

    async def run() -> None:
        logs = LogManager(box.machine, ["/data", "/more"])
        await logs.start(lambda _: LogConfig())
        append(box, await get_or_create(logs, NAME, LogConfig(), TOPIC_ID), 10)
        await ChunkStore(box.machine, logs).carve(NAME, FIRST, 10)
        folder = chunk_folder(NAME, 0)
        [home, other] = sorted(["/data", "/more"], key=lambda path: folder not in box.disk.list(path))
        box.disk.make_dirs(f"{other}/{folder}")
        for file in box.disk.list(f"{home}/{folder}"):
            box.disk.write_atomically(f"{other}/{folder}/{file}", box.disk.read(f"{home}/{folder}/{file}"))
        await logs.stop()

        logs = LogManager(box.machine, ["/data", "/more"])
        await logs.start(lambda _: LogConfig())
        store = ChunkStore(box.machine, logs)
        await store.load()
        assert (await store.open(NAME, FIRST)).log_end_offset == 10
        names = [name for path in ("/data", "/more") for name in box.disk.list(path)]
        assert (names.count(folder), sum(map(is_stray_folder, names))) == (1, 1)
        await logs.stop()

    asyncio.run(run())


@pytest.mark.parametrize("lost", [1, 2])
def test_a_chunk_that_ends_too_early_is_not_read(box: Any, lost: int) -> None:
    """If it were read, consumers would miss its last records without an error."""

    async def run() -> None:
        logs, store = await with_one_chunk(box, 2)
        path = f"/data/{chunk_folder(NAME, 0)}/{0:020}.log"
        content = box.disk.read(path)
        box.disk.write_atomically(path, content[: len(content) // 2 * (2 - lost)])
        store.end_of = lambda chunk: 2 if chunk == FIRST else None
        for _ in range(2):
            with pytest.raises(KafkaError, match=f"ends at {2 - lost}, not at 2") as refused:
                await store.open(NAME, FIRST)
            assert refused.value.code is ErrorCode.kafka_storage_error
        await logs.stop()

    asyncio.run(run())


def test_records_past_the_border_are_cut_off_and_the_rest_is_durable(box: Any) -> None:
    async def run() -> None:
        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        append(box, await get_or_create(logs, NAME, LogConfig(), TOPIC_ID), 10)
        await ChunkStore(box.machine, logs).carve(NAME, FIRST, 7)
        box.disk.crash(random.Random(0))

        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        store = ChunkStore(box.machine, logs)
        await store.load()
        assert (await store.open(NAME, FIRST)).log_end_offset == 7
        assert logs.get(NAME) is None

    asyncio.run(run())


def test_a_chunk_of_an_unknown_topic_is_put_aside_and_removed_late(box: Any) -> None:
    async def run() -> None:
        delay_ms = 60_000
        logs = LogManager(box.machine, ["/data"], LogManagerSettings(stray_delete_delay_ms=delay_ms))
        await logs.start(lambda _: LogConfig())
        append(box, await get_or_create(logs, NAME, LogConfig(), TOPIC_ID), 10)
        store = ChunkStore(box.machine, logs)
        await store.carve(NAME, FIRST, 10)
        await store.put_aside(FIRST)
        assert FIRST not in store
        [stray] = [each for each in box.disk.list("/data") if each.startswith("t-0")]
        assert is_stray_folder(stray)
        assert logs.stray_count == 1
        await logs.stop()

        # At the next start, the folder is still a stray folder and not a chunk.
        logs = LogManager(box.machine, ["/data"], LogManagerSettings(stray_delete_delay_ms=0))
        await logs.start(lambda _: LogConfig())
        store = ChunkStore(box.machine, logs)
        await store.load()
        assert list(store) == []
        await logs.removals.run_due()
        assert stray not in box.disk.list("/data")
        await logs.stop()

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"version: 7\n", None], ids=["damaged", "missing"])
def test_a_folder_whose_topic_is_unknown_is_moved_aside_and_makes_room_for_a_copy(
    box: Any, content: bytes | None
) -> None:
    async def run() -> None:
        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        append(box, await get_or_create(logs, NAME, LogConfig(), TOPIC_ID), 10)
        await ChunkStore(box.machine, logs).carve(NAME, FIRST, 10)
        await logs.stop()
        folder = f"/data/{chunk_folder(NAME, 0)}"
        if content is None:
            box.disk.remove(f"{folder}/partition.metadata")
        else:
            box.disk.write_atomically(f"{folder}/partition.metadata", content)

        logs = LogManager(box.machine, ["/data"])
        await logs.start(lambda _: LogConfig())
        store = ChunkStore(box.machine, logs)
        await store.load()
        assert list(store) == []
        [stray] = [each for each in box.disk.list("/data") if each.startswith("t-0")]
        assert is_stray_folder(stray)
        assert logs.stray_count == 1
        await logs.stop()

    asyncio.run(run())


def test_a_copy_replaces_a_damaged_chunk_and_the_damaged_folder_is_kept(box: Any) -> None:
    async def run() -> None:
        logs, store = await with_one_chunk(box, 10)
        folder = f"/data/{chunk_folder(NAME, 0)}"
        content = {name: box.disk.read(f"{folder}/{name}") for name in box.disk.list(folder)}
        await store.open(NAME, FIRST)
        log = f"{0:020d}.log"
        box.disk.write_atomically(f"{folder}/{log}", b"damaged")
        cut = {**content, log: content[log][:-80]}
        with pytest.raises(KafkaError):
            await store.copy(NAME, FIRST, 10, Copied(cut))
        assert box.disk.list("/data").count(chunk_folder(NAME, 0)) == 1
        assert not any(is_chunk_copy(each) for each in box.disk.list("/data"))
        assert box.disk.read(f"{folder}/{log}") == b"damaged"
        await store.copy(NAME, FIRST, 10, Copied(content))
        assert box.disk.read(f"{folder}/{log}") == content[log]
        found = await store.open(NAME, FIRST)
        assert found.read(3, 10**6, upper_bound_offset=10).next_offset == 10
        assert sum(is_stray_folder(each) for each in box.disk.list("/data")) == 1
        store.close()
        await logs.stop()

    asyncio.run(run())


def test_a_chunk_whose_folder_is_gone_is_not_opened_as_an_empty_log(box: Any) -> None:
    async def run() -> None:
        logs, store = await with_one_chunk(box, 10)
        box.disk.remove_tree(f"/data/{chunk_folder(NAME, 0)}")
        with pytest.raises(KafkaError):
            await store.open(NAME, FIRST)
        await logs.stop()

    asyncio.run(run())
