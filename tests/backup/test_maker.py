"""Tests ``backup.cut_maker`` with a cluster in memory. They check the order in which logs are saved,
failures, and rounds without a change."""

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from moldau.backup.calls import LogsToSave, SavedLog
from moldau.backup.cut_format import (
    CUTS_FOLDER,
    DATA_FOLDER,
    ClusterCut,
    LogPiece,
    ObjectPart,
    cut_key,
    data_key,
)
from moldau.backup.cut_maker import CutMaker, CutSettings
from moldau.backup.stored_cuts import StoredCuts
from moldau.cluster.image.delta import MetadataDelta
from moldau.cluster.image.image import MetadataImage, Provenance
from moldau.cluster.internal_topics import (
    CONSUMER_OFFSETS_TOPIC,
    DISKLESS_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    STATE_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from moldau.metrics import Meters
from moldau.objects import MemoryStorage
from moldau.objects.storage import StorageTimeoutError
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError, Machine

LEADERS = (1, 2)


async def newest_cut(storage: MemoryStorage) -> ClusterCut | None:
    found = await StoredCuts(storage).newest()
    return None if found is None else found.cut


def on_a_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on a new event loop."""

    @functools.wraps(story)
    def test() -> None:
        asyncio.run(story())

    return test


class Cluster:
    """Two brokers, each of which leads a partition of every saved topic."""

    cluster_id = "the-cluster"
    broker_id = 1
    generation = 0

    def __init__(self) -> None:
        self.storage = MemoryStorage(Machine.real().clock)
        self.meters = Meters()
        self.calls: list[tuple[int, list[str]]] = []
        self.events: list[str] = []
        self.is_broken = False
        self.failure = ""
        self.makes_cuts = True
        self.new_records = 1
        self.snapshots = 0
        """Number of calls in which the logs of diskless coordinators begin with a new snapshot."""
        self.leader_epoch = 4
        self.ends: dict[PartitionKey, int] = {}
        self.ids = {name: uuid.uuid4() for name in STATE_TOPICS}
        self.names = {topic_id: name for name, topic_id in self.ids.items()}
        self.image = self._image()

    def _image(self) -> MetadataImage:
        records: list[Message] = [r.FeatureLevelRecord(name="metadata.version", feature_level=26)]
        for name, topic_id in self.ids.items():
            records.append(r.TopicRecord(name=name, topic_id=topic_id))
            records += [
                r.PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=[leader],
                    isr=[leader],
                    leader=leader,
                    leader_epoch=self.leader_epoch,
                    partition_epoch=0,
                )
                for index, leader in enumerate(LEADERS)
            ]
        return MetadataDelta().replay_all(records).apply(Provenance(10, 1, 0))

    def is_maker(self) -> bool:
        return self.makes_cuts

    def fail(self, reason: str) -> None:
        self.failure = reason

    async def save_logs(self, broker_id: int, wanted: LogsToSave) -> Sequence[SavedLog]:
        names = sorted({self.names[log.log_id.topic_id] for log in wanted.logs})
        self.calls.append((broker_id, names))
        self.events += names
        if self.is_broken and DISKLESS_METADATA_TOPIC in names:
            raise KafkaError(ErrorCode.not_leader_or_follower, "no leader any more")
        if DISKLESS_METADATA_TOPIC in names and self.snapshots > 0:
            self.snapshots -= 1
            return await self._save_snapshots(wanted)
        found = []
        for log in wanted.logs:
            end = self.ends.get(log.log_id, 0) + self.new_records
            self.ends[log.log_id] = end
            start = max(0, log.from_offset)
            part = ObjectPart(f"{wanted.object_key}-0", start, end - start, 0)
            pieces = [LogPiece(part, start, end, 4)] if start < end else []
            found.append(SavedLog(log.log_id, log.from_offset < 0, pieces))
        await self.storage.upload(f"{wanted.object_key}-0", b"x", 1)
        return found

    async def _save_snapshots(self, wanted: LogsToSave) -> Sequence[SavedLog]:
        part = ObjectPart(f"{wanted.object_key}-0", 0, 1, 0)
        await self.storage.upload(part.object_key, b"x", 1)
        self.ends.update((log.log_id, self.ends.get(log.log_id, 0) + 1) for log in wanted.logs)
        return [
            SavedLog(log.log_id, True, [LogPiece(part, 0, self.ends[log.log_id], self.leader_epoch, True)])
            for log in wanted.logs
        ]

    def until_current(self) -> Awaitable[None]:
        async def current() -> None:
            self.events.append("metadata")

        return current()

    def maker(self, retention_ms: int = 3_600_000) -> CutMaker:
        settings = CutSettings(interval_ms=1, retention_ms=retention_ms)
        return CutMaker(Machine.real(), self.storage, self, settings, self.meters)

    async def keys(self, folder: str) -> list[str]:
        return [info.key async for page in self.storage.list(folder) for info in page]


@on_a_loop
async def test_logs_are_saved_in_a_fixed_order_and_the_metadata_last() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    assert cluster.events.pop(0) == "metadata"  # the metadata are also saved once before the first cut
    first = {name: cluster.events.index(name) for name in (*STATE_TOPICS, "metadata")}
    last = {name: len(cluster.events) - cluster.events[::-1].index(name) for name in first}
    assert last[CONSUMER_OFFSETS_TOPIC] <= first[DISKLESS_METADATA_TOPIC]
    assert last[TRANSACTION_STATE_TOPIC] <= first[DISKLESS_METADATA_TOPIC]
    assert last[DISKLESS_METADATA_TOPIC] <= first[REMOTE_LOG_METADATA_TOPIC]
    assert last[REMOTE_LOG_METADATA_TOPIC] <= first["metadata"]
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert {log.topic for log in cut.logs.values()} == set(STATE_TOPICS)
    assert len(cut.logs) == len(LEADERS) * len(STATE_TOPICS)


@on_a_loop
async def test_a_cut_contains_every_log() -> None:
    cluster = Cluster()
    maker = cluster.maker()
    await maker.run_once()
    cluster.is_broken = True
    with pytest.raises(KafkaError):
        await maker.run_once()
    assert len(await cluster.keys(CUTS_FOLDER)) == 1
    first = await newest_cut(cluster.storage)
    assert first is not None
    assert set(await cluster.keys(DATA_FOLDER)) <= first.object_keys()
    assert "no leader any more" in maker.last_error
    cluster.is_broken = False
    await maker.run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert {log.end_offset for log in cut.logs.values()} <= {2, 3}
    assert all(log.pieces[0].base_offset == 0 for log in cut.logs.values())


@on_a_loop
async def test_a_save_that_does_not_end_is_not_explained_by_an_earlier_error() -> None:
    cluster = Cluster()
    maker = cluster.maker()
    assert maker.last_error == "no state was saved yet"
    cluster.is_broken = True
    with pytest.raises(KafkaError):
        await maker.run_once()
    cluster.is_broken = False
    await maker.run_once()
    assert maker.last_error == "the next save has not ended"


@on_a_loop
async def test_nothing_is_stored_when_nothing_has_changed() -> None:
    cluster = Cluster()
    maker = cluster.maker()
    await maker.run_once()
    cluster.new_records = 0
    await maker.run_once()
    stored = await cluster.keys(CUTS_FOLDER)
    cluster.image = replace(cluster.image, provenance=Provenance(99, 1, 0))  # a record that changes nothing
    await maker.run_once()
    assert await cluster.keys(CUTS_FOLDER) == stored
    cluster.image = replace(cluster.image, next_producer_id=1000)
    await maker.run_once()
    assert len(await cluster.keys(CUTS_FOLDER)) == len(stored) + 1


@on_a_loop
async def test_each_stored_object_is_counted() -> None:
    cluster = Cluster()
    maker = cluster.maker()
    counted = cluster.meters.scoped("moldau.backup", "Cuts").counter("ObjectsPerSec")
    for _ in range(3):
        await maker.run_once()
        stored = [*await cluster.keys(CUTS_FOLDER), *await cluster.keys(DATA_FOLDER)]
        assert counted.value == len(stored) > 0


@on_a_loop
async def test_another_maker_continues_the_newest_cut() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert {len(log.pieces) for log in cut.logs.values()} == {2}


@on_a_loop
async def test_a_broker_that_is_not_the_maker_does_nothing() -> None:
    cluster = Cluster()
    cluster.makes_cuts = False
    maker = cluster.maker()
    await maker.run_once()
    assert cluster.calls == []
    assert maker.lag_ms is None


@on_a_loop
async def test_old_cuts_are_deleted_and_the_data_of_the_other_cuts_are_kept() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    hours = 3 * 3_600_000
    old = replace(cut, created_ms=cut.created_ms - hours, metadata=cut.metadata._replace(object_key="x"))
    foreign = f"{CUTS_FOLDER}readme"
    unused = (
        f"{data_key(0, old.created_ms, 1, 'aaaaaaaaaaaa')}-0",
        f"{DATA_FOLDER}{old.created_ms:013d}-1-aaaaaaaaaaaa-0",  # a key of an older version
    )
    stored = StoredCuts(cluster.storage)
    await stored.store(old, 1, "aaaaaaaaaaaa")
    for key in (foreign, *unused):
        await cluster.storage.upload(key, b"x", 1)
    await stored.delete_old(cut, retention_ms=3_600_000)
    keys = await cluster.keys(CUTS_FOLDER)
    assert foreign in keys
    assert len(keys) == 2
    assert set(await cluster.keys(DATA_FOLDER)) == cut.object_keys()


@on_a_loop
async def test_data_of_a_damaged_cut_do_not_stop_the_deletion() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    await cluster.storage.upload(cut_key(cut, 1, "bbbbbbbbbbbb"), b"{}", 2)
    await StoredCuts(cluster.storage).delete_old(cut, retention_ms=3_600_000)
    assert set(await cluster.keys(DATA_FOLDER)) == cut.object_keys()


@on_a_loop
async def test_cuts_are_ordered_by_their_numbers_and_not_by_clocks() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    first = await newest_cut(cluster.storage)
    assert first is not None
    behind = replace(first, created_ms=first.created_ms - 60_000, number=first.number + 1)
    await StoredCuts(cluster.storage).store(behind, 2, "cccccccccccc")
    assert await newest_cut(cluster.storage) == behind


@on_a_loop
async def test_the_first_cut_of_a_restored_cluster_has_all_of_every_log() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    cluster.generation, cluster.ends = 1, {}
    await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert (cut.generation, cut.number) == (1, 0)
    assert all(key.startswith(f"{DATA_FOLDER}0000000001-") for key in cut.object_keys())
    assert all(log.pieces[0].base_offset == 0 and len(log.pieces) == 1 for log in cut.logs.values())


@on_a_loop
async def test_a_cut_of_a_later_generation_is_newer() -> None:
    cluster = Cluster()
    cluster.generation = 1
    await cluster.maker().run_once()
    cluster.generation = 0  # a node of the old cluster that is still running
    await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert cut.generation == 1


@on_a_loop
async def test_a_damaged_cut_is_skipped() -> None:
    cluster = Cluster()
    maker = cluster.maker()
    await maker.run_once()
    whole = await newest_cut(cluster.storage)
    assert whole is not None
    key = cut_key(replace(whole, number=9), 1, "aaaaaaaaaaaa")
    await cluster.storage.upload(key, b"{}\n00000000\n", 12)
    assert await newest_cut(cluster.storage) == whole


@on_a_loop
async def test_a_cut_that_may_be_stored_keeps_its_data() -> None:
    cluster = Cluster()
    stored = cluster.storage.upload

    async def lose_answer(key: str, data: bytes, length: int) -> None:
        await stored(key, data, length)
        if key.startswith(CUTS_FOLDER):
            raise StorageTimeoutError("no answer")

    cluster.storage.upload = lose_answer  # type: ignore[method-assign,assignment]
    with pytest.raises(StorageTimeoutError):
        await cluster.maker().run_once()
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    assert cut.object_keys() <= set(await cluster.keys(DATA_FOLDER))


@on_a_loop
async def test_a_cluster_that_is_older_than_a_saved_state_saves_nothing() -> None:
    cluster = Cluster()
    await cluster.maker().run_once()
    stored = await cluster.keys(CUTS_FOLDER)
    cluster.image = replace(cluster.image, provenance=Provenance(7, 1, 0))
    with pytest.raises(KafkaError):
        await cluster.maker().run_once()
    assert "the metadata end at offset 7, and those of offset 10 are saved" in cluster.failure
    assert await cluster.keys(CUTS_FOLDER) == stored
    cluster.generation, cluster.failure = 1, ""  # a restored cluster may have another history
    await cluster.maker().run_once()
    assert cluster.failure == ""


@on_a_loop
async def test_the_logs_before_a_snapshot_are_saved_after_it_was_made() -> None:
    """A snapshot may contain commits that were decided after the log of their decisions was saved."""
    cluster = Cluster()
    cluster.snapshots = 1  # one of the two leaders has a snapshot
    await cluster.maker().run_once()
    order = [STATE_TOPICS[each].saved_in_step for each in cluster.events if each != "metadata"]
    steps = sorted(topic.saved_in_step for topic in STATE_TOPICS.values() for _ in LEADERS)
    assert order == steps * 2
    assert {*cluster.events} == {*STATE_TOPICS, "metadata"}
    cut = await newest_cut(cluster.storage)
    assert cut is not None
    for log_id, log in cut.logs.items():
        assert log.problem() is None
        assert log.end_offset == cluster.ends[log_id] == 2
    assert cut.object_keys() <= set(await cluster.keys(DATA_FOLDER))


@on_a_loop
async def test_a_save_is_repeated_later_if_each_pass_meets_a_new_snapshot() -> None:
    cluster = Cluster()
    cluster.snapshots = 100
    maker = cluster.maker()
    with pytest.raises(KafkaError):
        await maker.run_once()
    assert "snapshot" in maker.last_error
    assert await cluster.keys(CUTS_FOLDER) == []
    assert await cluster.keys(DATA_FOLDER) == []
    cluster.snapshots = 0
    await maker.run_once()
    assert len(await cluster.keys(CUTS_FOLDER)) == 1


@on_a_loop
async def test_a_second_pass_does_not_continue_the_log_of_another_leader() -> None:
    cluster = Cluster()
    cluster.snapshots = 1
    save = cluster.save_logs

    async def change_leader(broker_id: int, wanted: LogsToSave) -> Sequence[SavedLog]:
        saved = await save(broker_id, wanted)
        if cluster.leader_epoch == 4 and cluster.snapshots == 0:
            cluster.leader_epoch = 5
            cluster.image = cluster._image()
        return saved

    cluster.save_logs = change_leader  # type: ignore[method-assign]
    maker = cluster.maker()
    with pytest.raises(KafkaError):
        await maker.run_once()
    assert "leader" in maker.last_error
    await maker.run_once()
    assert len(await cluster.keys(CUTS_FOLDER)) == 1
