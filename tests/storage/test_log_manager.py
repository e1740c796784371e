"""All logs of a node: loading, checkpoints, deletion, failing disks."""

import asyncio
import errno
import gc
import random
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pytest

from created_logs import get_or_create
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import validate_produce
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime import ErrorCode, InlineWorkers, KafkaError
from moldau.runtime.files.disk import DiskError
from moldau.storage.critical_logs.inventory import CriticalTopic
from moldau.storage.critical_logs.recovery_report import RepairKind
from moldau.storage.folders.file_names import CLEAN_SHUTDOWN
from moldau.storage.folders.log_directory import LogDirectoryError, previous_broker_epoch
from moldau.storage.folders.log_opener import LogOpener
from moldau.storage.log.config import LogConfig
from moldau.storage.log.files.disk_steps import run_whole
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.log_manager_settings import LogManagerSettings

P = ParamSpec("P")
T = TypeVar("T")

TOPIC_ID = uuid.UUID(int=7)
CONFIG = LogConfig(file_delete_delay_ms=0)
A0 = TopicPartition("a", 0)


def config_of(_: str) -> LogConfig:
    return CONFIG


def append(box: Any, log: PartitionLog, count: int = 1) -> None:
    batch = build_batch([Record(0, box.clock.time_ms, None, b"v", ())])
    for _ in range(count):
        log.append_as_leader(batch, validate_produce(batch, max_batch_bytes=10**6), 0)


def test_a_clean_stop_leaves_kafkas_files_and_loads_again(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one", "/two"])
        await manager.start(config_of)
        for number in range(4):
            append(box, await get_or_create(manager, TopicPartition("a", number), CONFIG, TOPIC_ID), 3)
        log = manager.get(A0)
        assert log is not None
        log.high_watermark = 2
        log.update_log_start_offset(1)
        await manager.stop()
        assert sorted(folder for folder in box.disk.dirs if folder.count("/") == 2) == [
            "/one/a-0", "/one/a-2", "/two/a-1", "/two/a-3",
        ]  # fmt: skip
        assert box.disk.read("/one/recovery-point-offset-checkpoint") == b"0\n2\na 0 3\na 2 3\n"
        assert box.disk.read("/one/log-start-offset-checkpoint") == b"0\n1\na 0 1\n"
        assert box.disk.read("/one/replication-offset-checkpoint") == b"0\n2\na 0 2\na 2 0\n"
        assert box.disk.exists("/one/.kafka_cleanshutdown")
        assert (
            box.disk.read("/one/a-0/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw\n"
        )
        again = LogManager(box.machine, ["/one", "/two"])
        await again.start(config_of)
        assert not box.disk.exists("/one/.kafka_cleanshutdown")
        assert again.checkpointed_high_watermark(A0) == 2
        log = again.get(A0)
        assert log is not None
        assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (1, 3, TOPIC_ID)
        await again.stop()

    box.run(scenario())


def test_a_start_without_a_registration_keeps_the_epoch_of_the_clean_stop(box: Any) -> None:
    """If the epoch were lost, the controller would take the clean stop for an unclean stop, and remove the
    broker from all in-sync sets."""

    async def scenario() -> None:
        first = LogManager(box.machine, ["/one", "/two"])
        await first.start(config_of)
        first.broker_epoch = 7
        await first.stop()
        failed = LogManager(box.machine, ["/one", "/two"])
        await failed.start(config_of)
        await failed.stop()
        again = LogManager(box.machine, ["/one", "/two"])
        await again.start(config_of)
        assert previous_broker_epoch(again.directories) == 7

    box.run(scenario())


@pytest.mark.parametrize(
    ("closed_in", "last_epoch", "previous"),
    [
        ((20, 20), 20, 20),
        ((20, 20), -1, 20),
        # A folder without a mark was not closed cleanly, or is new.
        ((None, 20), 20, -1),
        ((None, None), 20, -1),
        # The first folder is an older copy.
        ((10, 20), 20, 10),
        ((10, 20), -1, 10),
        ((10, None), 20, 10),
        # Nothing shows that the first folder is older than the second one.
        ((10, None), -1, -1),
    ],
)
def test_a_folder_that_was_closed_in_an_older_epoch_is_detected(
    box: Any, closed_in: tuple[int | None, int | None], last_epoch: int, previous: int
) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one", "/two"])
        await manager.start(config_of)
        await manager.stop()
        for path, epoch in zip(("/one", "/two"), closed_in, strict=True):
            mark = f"{path}/{CLEAN_SHUTDOWN}"
            box.machine.disk.remove(mark)
            if epoch is not None:
                box.machine.disk.write_atomically(mark, b'{"version":0,"brokerEpoch":%d}' % epoch)
        again = LogManager(box.machine, ["/one", "/two"])
        await again.start(config_of)
        assert previous_broker_epoch(again.directories, last_epoch) == previous

    box.run(scenario())


def test_only_one_process_uses_a_folder(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        with pytest.raises(LogDirectoryError, match="/one is in use by another process"):
            await LogManager(box.machine, ["/one"]).start(config_of)
        await manager.stop()
        await LogManager(box.machine, ["/one"]).start(config_of)

    box.run(scenario())


def test_foreign_folders_are_skipped_and_broken_ones_named(box: Any) -> None:
    async def scenario() -> None:
        box.disk.make_dirs("/one/lost+found")
        box.disk.make_dirs("/one/__cluster_metadata-0")
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        assert list(manager) == []
        await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        await manager.stop()
        box.disk.write_atomically("/one/a-0/partition.metadata", b"nonsense")
        with pytest.raises(LogDirectoryError, match="/one/a-0"):
            await LogManager(box.machine, ["/one"]).start(config_of)

    box.run(scenario())


def test_deletion_renames_soon_and_removes_later(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        append(box, log)
        manager.delete(A0)
        assert manager.get(A0) is None
        with pytest.raises(KafkaError):
            append(box, log)
        await manager.settled()
        assert any(folder.endswith("-delete") for folder in box.disk.dirs)
        await manager.clean_up()
        assert not any(folder.endswith("-delete") for folder in box.disk.dirs)
        await manager.stop()

    box.run(scenario())


def test_a_stray_folder_is_removed_after_its_delay_and_not_before(box: Any) -> None:
    """Each start also finds the stray folders of earlier starts. Folders that an operator has renamed are
    kept."""

    async def strays_after(delay_ms: int) -> list[str]:
        manager = LogManager(box.machine, ["/one"], LogManagerSettings(stray_delete_delay_ms=delay_ms))
        await manager.start(config_of)
        await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        manager.put_aside(A0)
        await manager.settled()
        await manager.clean_up()
        await manager.stop()
        return sorted(folder for folder in box.disk.dirs if folder.endswith("-stray"))

    async def scenario() -> None:
        box.disk.make_dirs("/one/b-0.given-up-stray")
        assert len(await strays_after(-1)) == 2
        assert len(await strays_after(3_600_000)) == 3
        assert await strays_after(0) == ["/one/b-0.given-up-stray"]

    box.run(scenario())


def test_checkpoints_of_a_deleted_topic_do_not_apply_to_the_next_topic_of_the_same_name(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        append(box, log, 5)
        log.update_log_start_offset(5)
        await log.flush()
        await manager.checkpoint()
        successor = await get_or_create(manager, A0, CONFIG, uuid.UUID(int=8))
        assert successor.log_end_offset == 0
        append(box, successor, 2)
        await successor.flush()
        box.disk.crash(random.Random(1))
        again = LogManager(box.machine, ["/one"])
        await again.start(config_of)
        found = again.get(A0)
        assert found is not None
        assert (found.log_start_offset, found.log_end_offset) == (0, 2)

    box.run(scenario())


class WorkersWithSlowTruncation(InlineWorkers):
    """Delays the removal of a log's files until ``may_go_on`` is set."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if getattr(getattr(function, "func", function), "__name__", "") == "drop_files":
            await self.may_go_on.wait()
        return function(*args, **kwargs)


def test_a_truncation_of_a_deleted_log_does_not_touch_the_next_log_of_the_same_name(box: Any) -> None:
    async def scenario() -> None:
        workers = WorkersWithSlowTruncation()
        manager = LogManager(replace(box.machine, workers=workers), ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        append(box, log)
        truncation = asyncio.ensure_future(log.truncate_fully_and_start_at(0))
        await asyncio.sleep(0)
        creation = asyncio.ensure_future(get_or_create(manager, A0, CONFIG, uuid.UUID(int=8)))
        for _ in range(30):
            await asyncio.sleep(0)
        assert not creation.done()
        workers.may_go_on.set()
        with pytest.raises(KafkaError):
            await truncation
        successor = await creation
        append(box, successor, 2)
        successor.roll()
        await successor.flush()
        assert successor.log_end_offset == 2
        await manager.stop()

    box.run(scenario())


def test_starts_that_move_together_share_one_write_of_the_checkpoint(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        names = [TopicPartition("a", number) for number in range(40)]
        logs = [await get_or_create(manager, name, CONFIG, TOPIC_ID) for name in names]
        for number, log in enumerate(logs):
            append(box, log, 3)
            log.update_log_start_offset(1 + number % 2)
        box.disk.written.clear()
        await asyncio.gather(*(log.persist_start() for log in logs))
        checkpoint = "/one/log-start-offset-checkpoint"
        first, *others = [at for at, path in enumerate(box.disk.written) if path == checkpoint]
        assert len(others) <= 1, "who asks while the first is written is served by the second"
        assert f"{logs[0].directory}/leader-epoch-checkpoint" in box.disk.written[:first]
        box.disk.crash(random.Random(1))
        again = LogManager(box.machine, ["/one"])
        await again.start(config_of)
        starts = {log.topic_partition: log.log_start_offset for log in again}
        assert starts == {name: 1 + name.partition % 2 for name in names}
        assert all(repair.kind is RepairKind.TORN_TAIL for repair in again.report.repairs)

    box.run(scenario())


def test_a_start_that_cannot_be_written_is_an_error_to_all_that_wait(box: Any) -> None:
    async def scenario() -> None:
        offline: list[str] = []
        manager = LogManager(box.machine, ["/one"], on_offline=lambda path, _: offline.append(path))
        await manager.start(config_of)
        names = [TopicPartition("a", number) for number in range(4)]
        logs = [await get_or_create(manager, name, CONFIG, TOPIC_ID) for name in names]
        for log in logs:
            append(box, log, 3)
            log.update_log_start_offset(1)
        box.disk.failing = True
        answers = await asyncio.gather(*(log.persist_start() for log in logs), return_exceptions=True)
        assert [answer.code for answer in answers] == [ErrorCode.kafka_storage_error] * 4
        assert offline == ["/one"]

    box.run(scenario())


def test_a_kill_after_the_removal_of_a_deleted_log_does_not_look_like_a_loss(box: Any) -> None:
    async def scenario() -> None:
        critical = {"a": CriticalTopic()}
        manager = LogManager(box.machine, ["/one"], critical=critical)
        await manager.start(config_of)
        for name in ("a", "b"):
            log = await get_or_create(manager, TopicPartition(name, 0), CONFIG, TOPIC_ID)
            append(box, log, 5)
            await log.flush()
            log.high_watermark = 5
        await manager.checkpoint()
        await manager.checkpoint_high_watermarks()
        for name in ("a", "b"):
            manager.delete(TopicPartition(name, 0))
        await manager.settled()
        await manager.clean_up()
        assert not any(folder.endswith("-delete") for folder in box.disk.dirs)
        box.disk.crash(random.Random(1))
        again = LogManager(box.machine, ["/one"], critical=critical)
        await again.start(config_of)
        await get_or_create(again, TopicPartition("b", 0), CONFIG, uuid.UUID(int=8))
        assert not again.report.repairs
        await again.stop()

    box.run(scenario())


@pytest.mark.parametrize("is_emptied", [False, True])
@pytest.mark.parametrize(("is_cache", "lost"), [(False, 1), (True, 0)])
def test_a_missing_or_emptied_folder_is_reported_when_its_log_is_created_again(
    box: Any, is_cache: bool, lost: int, is_emptied: bool
) -> None:
    config = replace(CONFIG, is_cache=is_cache)

    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, config, TOPIC_ID)
        append(box, log, 3)
        log.high_watermark = 3
        await manager.stop()
        box.disk.remove_tree("/one/a-0")
        if is_emptied:
            box.disk.make_dirs("/one/a-0")
        again = LogManager(box.machine, ["/one"])
        await again.start(config_of)
        assert again.report.count(RepairKind.LOST) == 0
        await get_or_create(again, A0, config, TOPIC_ID)
        assert again.report.count(RepairKind.LOST) == lost
        assert not lost or "/one/a-0" in str(again.report.summary(RepairKind.LOST))
        await again.stop()
        # The previous start has removed the lost folder from the checkpoints, so this start does not report
        # the loss again.
        third = LogManager(box.machine, ["/one"])
        await third.start(config_of)
        await get_or_create(third, A0, config, TOPIC_ID)
        assert third.report.count(RepairKind.LOST) == 0
        await third.stop()

    box.run(scenario())


def test_a_log_that_could_not_be_opened_at_the_start_keeps_its_offsets(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node lacked file descriptors when it started. The log is opened when the metadata name its
    partition. If its start were forgotten, deleted records would come back."""

    def refuse(*_: Any, **__: Any) -> PartitionLog:
        raise KafkaError(ErrorCode.kafka_storage_error) from DiskError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        append(box, log, 5)
        log.high_watermark = 4
        log.update_log_start_offset(3)
        await manager.stop()
        again = LogManager(box.machine, ["/one"])
        with monkeypatch.context() as patch:
            patch.setattr(LogOpener, "open", refuse)
            await again.start(config_of)
        assert again.get(A0) is None
        assert again.directories[0].is_online
        log = await get_or_create(again, A0, CONFIG, TOPIC_ID)
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 4, 5)
        await again.stop()

    box.run(scenario())


def test_a_truncation_takes_back_the_recovery_point(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        log = await get_or_create(manager, A0, CONFIG, TOPIC_ID)
        append(box, log, 5)
        await log.flush()
        await manager.checkpoint()
        await log.truncate_to(2)
        assert box.disk.read("/one/recovery-point-offset-checkpoint") == b"0\n1\na 0 2\n"
        await manager.stop()

    box.run(scenario())


def test_a_failing_disk_takes_its_folder_offline_once(box: Any) -> None:
    async def scenario() -> None:
        offline: list[tuple[str, str]] = []
        manager = LogManager(box.machine, ["/one", "/two"], on_offline=lambda *told: offline.append(told))
        await manager.start(config_of)
        logs = [
            await get_or_create(manager, TopicPartition("a", number), CONFIG, TOPIC_ID) for number in range(4)
        ]
        box.disk.room_bytes = 10
        with pytest.raises(KafkaError):
            append(box, logs[0])
        box.disk.room_bytes = None
        assert offline == [("/one", "/one/a-0/00000000000000000000.log: No space left on device")]
        with pytest.raises(KafkaError, match="/one is offline"):
            append(box, logs[2])
        append(box, logs[1])
        assert (
            await get_or_create(manager, TopicPartition("b", 0), CONFIG, TOPIC_ID)
        ).directory == "/two/b-0"
        await manager.stop()
        assert not box.disk.exists("/one/.kafka_cleanshutdown")
        assert box.disk.exists("/two/.kafka_cleanshutdown")

    box.run(scenario())


def test_periodic_work_runs_automatically_and_ends_with_the_manager(box: Any) -> None:
    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        before = len(asyncio.all_tasks())
        await manager.stop()
        assert len(asyncio.all_tasks()) < before

    box.run(scenario())


def test_an_iteration_over_the_logs_does_not_keep_deleted_logs(box: Any) -> None:
    """If an iteration kept ten thousand deleted logs until its end, all of them would be freed in one
    iteration of the event loop."""

    async def scenario() -> None:
        manager = LogManager(box.machine, ["/one"])
        await manager.start(config_of)
        names = [TopicPartition("a", index) for index in range(40)]
        for name in names:
            await get_or_create(manager, name, CONFIG, TOPIC_ID)
        walk = iter(manager)
        assert next(walk).topic_partition == names[0]
        logs = [weakref.ref(log) for log in manager]
        for name in names[1:-1]:
            manager.delete(name)
        await manager.settled()
        assert [log() is not None for log in logs] == [True] + [False] * 38 + [True]
        assert [log.topic_partition for log in walk] == [names[-1]]
        await manager.stop()

    box.run(scenario())


def test_the_error_of_an_operation_makes_no_cycle_of_references() -> None:
    """Retention fails for each of ten thousand deleted logs. If each failure left a reference cycle, the
    garbage collection would block the event loop for 150 ms."""

    async def refused() -> None:
        raise KafkaError(ErrorCode.kafka_storage_error, "it was deleted")

    async def scenario() -> None:
        try:
            await run_whole(refused())
        except KafkaError as error:
            seen = weakref.ref(error)
        await asyncio.sleep(0)
        assert seen() is None

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
