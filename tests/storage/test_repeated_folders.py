"""Partitions that have a folder in two log folders when a node starts, and moves of deleted partitions."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.storage.folders.log_folders import NewLog
from moldau.storage.folders.placement import Assignment
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager

OLD_ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
CONFIG = LogConfig(file_delete_delay_ms=0)
A0 = TopicPartition("a", 0)
DIRECTORIES = {"/one": uuid.UUID(int=1001), "/two": uuid.UUID(int=1002)}


def append(box: Any, log: PartitionLog, count: int) -> None:
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
    for _ in range(count):
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)


async def started(box: Any, *paths: str) -> LogManager:
    manager = LogManager(box.machine, list(paths))
    manager.identify({path: DIRECTORIES[path] for path in paths}, {})
    await manager.start(lambda _: CONFIG)
    return manager


async def log_in(box: Any, path: str, topic_id: uuid.UUID, count: int) -> None:
    """Create a log in a log folder, while the other log folder is not used."""
    manager = await started(box, path)
    log = await get_or_create(manager, A0, CONFIG, topic_id)
    append(box, log, count)
    log.update_log_start_offset(0)
    log.high_watermark = count
    await manager.stop()


def strays(box: Any, path: str) -> list[str]:
    return [each for each in box.disk.dirs if each.startswith(f"{path}/a-0.") and each.endswith("-stray")]


@pytest.mark.parametrize(("old", "new"), [("/one", "/two"), ("/two", "/one")])
def test_of_two_folders_the_one_of_the_current_topic_is_used(box: Any, old: str, new: str) -> None:
    """A topic is deleted and created again while a log folder is offline. Then this log folder works."""

    async def scenario() -> None:
        await log_in(box, old, OLD_ID, 5)
        await log_in(box, new, NEW_ID, 3)
        manager = await started(box, "/one", "/two")
        assert manager.lacks(A0, NEW_ID)
        log = await get_or_create(manager, A0, CONFIG, NEW_ID)
        assert (log.directory, log.log_end_offset, log.high_watermark) == (f"{new}/a-0", 3, 3)
        assert len(strays(box, old)) == 1
        assert not strays(box, new)
        assert manager.stray_count == 1
        await manager.stop()
        again = await started(box, "/one", "/two")
        assert not again.lacks(A0, NEW_ID)
        await again.stop()

    box.run(scenario())


def test_a_start_of_the_log_survives_the_choice_of_its_folder(box: Any) -> None:
    async def scenario() -> None:
        await log_in(box, "/one", OLD_ID, 5)
        await log_in(box, "/two", NEW_ID, 3)
        manager = await started(box, "/two")
        log = manager.get(A0)
        assert log is not None
        log.update_log_start_offset(2)
        await manager.stop()
        manager = await started(box, "/one", "/two")
        log = await get_or_create(manager, A0, CONFIG, NEW_ID)
        assert (log.log_start_offset, log.log_end_offset) == (2, 3)
        await manager.stop()

    box.run(scenario())


def test_two_folders_of_deleted_topics_are_both_moved_aside(box: Any) -> None:
    async def scenario() -> None:
        await log_in(box, "/one", OLD_ID, 5)
        await log_in(box, "/two", NEW_ID, 3)
        manager = await started(box, "/one", "/two")
        log = await get_or_create(manager, A0, CONFIG, uuid.UUID(int=9))
        assert log.log_end_offset == 0
        assert len(strays(box, "/one")) == len(strays(box, "/two")) == 1
        await manager.stop()

    box.run(scenario())


@pytest.mark.parametrize("is_hosted", [False, True])
def test_folders_of_partitions_that_are_not_on_this_broker_are_moved_aside(box: Any, is_hosted: bool) -> None:
    async def scenario() -> None:
        await log_in(box, "/one", OLD_ID, 5)
        await log_in(box, "/two", NEW_ID, 3)
        manager = await started(box, "/one", "/two")
        await manager.put_unused_aside(lambda name: is_hosted)
        expected = 0 if is_hosted else 1
        assert len(strays(box, "/one")) == len(strays(box, "/two")) == expected
        await manager.stop()

    box.run(scenario())


@pytest.mark.parametrize(
    ("named", "is_cache", "chosen"),
    [("/one", False, "/one"), ("/two", False, "/two"), (None, False, None), (None, True, "/one")],
)
def test_of_two_folders_of_one_topic_the_one_in_the_metadata_is_used(
    box: Any, named: str | None, is_cache: bool, chosen: str | None
) -> None:
    """A replica leaves a broker and returns while one of the broker's log folders is offline. Caches are also
    created in another log folder."""

    async def scenario() -> None:
        await log_in(box, "/one", NEW_ID, 5)
        await log_in(box, "/two", NEW_ID, 3)
        manager = await started(box, "/one", "/two")
        directory_id = None if named is None else DIRECTORIES[named]
        config = replace(CONFIG, is_cache=is_cache)
        new = NewLog(A0, config, NEW_ID, Assignment(directory_id, is_new=False, is_cache=is_cache))
        failed = await manager.create([new])
        log = manager.get(A0)
        if chosen is None:
            assert log is None
            assert "/one/a-0 and /two/a-0 belong to the same partition" in str(failed[A0])
            assert not strays(box, "/one") + strays(box, "/two")
        else:
            assert not failed
            assert log is not None
            assert log.directory == f"{chosen}/a-0"
        await manager.stop()

    box.run(scenario())


def test_a_move_of_a_deleted_topic_does_not_start_again_for_its_successor(box: Any) -> None:
    """The node is killed while a log is copied. When it starts again, a new topic has the name."""

    async def scenario() -> None:
        first = await started(box, "/one", "/two")
        first.preferred[A0] = first.directories[0]
        log = await get_or_create(first, A0, CONFIG, OLD_ID)
        append(box, log, 5)
        one, two = first.directories
        await first.futures.begin(log, one, two)
        await first.stop()
        again = await started(box, "/one", "/two")
        assert again.unfinished_moves == [(A0, again.directories[1])]
        log = again.get(A0)
        assert log is not None
        await again.futures.begin(log, *again.directories)
        await get_or_create(again, A0, CONFIG, NEW_ID)
        await again.stop()
        last = await started(box, "/one", "/two")
        assert last.unfinished_moves == []
        assert not any(each.endswith("-future") for each in box.disk.dirs)
        await last.stop()

    box.run(scenario())


def test_a_moved_log_does_not_get_the_cleaned_offset_of_a_deleted_topic(box: Any) -> None:
    async def scenario() -> None:
        manager = await started(box, "/one", "/two")
        one, two = manager.directories
        manager.preferred[A0] = one
        log = await get_or_create(manager, A0, CONFIG, OLD_ID)
        append(box, log, 5)
        await manager.note_cleaned(log, 4)
        manager.delete(A0)
        await manager.settled()
        manager.preferred[A0] = two
        log = await get_or_create(manager, A0, CONFIG, NEW_ID)
        assert manager.home_of(A0) is two
        append(box, log, 9)
        move = await manager.futures.begin(log, two, one)
        while await manager.futures.copy(move):
            pass
        await manager.exchange(move)
        assert manager.home_of(A0) is one
        assert manager.cleaner_offset(A0) is None
        await manager.stop()

    box.run(scenario())
