"""Random histories of a whole coordinator on real files, compared with a simple model.

Offsets have no gaps, and duplicates get the original response. A file does not count as unused while one of
its batches is live. All this must be true after any crashes and losses of the database, with any snapshots
and any content of SQLite.
"""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from diskless_house import OTHER, TOPIC, House, batch, file, topic
from diskless_model import Model, ModelPartition
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moldau.coordinators.diskless.calls import (
    CommitFileCall,
    CommitFileResult,
    FindBatchesCall,
    OffsetToDelete,
    PartitionToFind,
    PruneCall,
    TimestampToList,
)
from moldau.coordinators.diskless.state.producers import opened
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError

IDS = [PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1), PartitionKey(OTHER, 0)]
PARTITIONS = st.sampled_from(IDS)


def refuse(batch: bytearray) -> int:
    raise KafkaError(ErrorCode.not_enough_replicas, "The log refuses.")


class CoordinatorHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.house = House(Path(self.folder.name))
        self.model = Model()
        self.files = 0
        self.calls: list[CommitFileCall] = []
        self.sequences: dict[tuple[PartitionKey, int], tuple[int, int]] = {}
        self.released: set[str] = set()
        self.run(self.house.start())
        self.run(self.house.service.create_partitions(0, [topic(2), topic(1, OTHER, "o")]))
        self.model.partitions.update({found: ModelPartition() for found in IDS})

    def run(self, scene: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(scene, 600))

    def teardown(self) -> None:
        self.run(self.house.stop())
        self.loop.close()
        self.folder.cleanup()

    async def _raw_commit(self, call: CommitFileCall) -> CommitFileResult:
        return await self.house.service.commit_file(0, call)

    async def _commit(self, call: CommitFileCall) -> None:
        expected = self.model.commit(call)
        try:
            result = await self._raw_commit(call)
        except KafkaError:
            assert expected is None
            return
        assert [(b.error, b.base_offset, b.is_duplicate) for b in result.batches] == expected

    @rule(data=st.data(), size=st.integers(1, 6))
    def commit(self, data: st.DataObject, size: int) -> None:
        batches = []
        for _ in range(size):
            at = data.draw(PARTITIONS)
            count = data.draw(st.integers(1, 4))
            time = data.draw(st.integers(0, 50))
            producer = None
            who = data.draw(st.sampled_from([-1, 7, 8]))
            if who >= 0:
                epoch, sequence = self.sequences.get((at, who), (0, 2**31 - 3))
                turn = data.draw(st.sampled_from(["next", "next", "again", "gap", "bump", "stale"]))
                if turn == "again":
                    sequence = (sequence - count) % 2**31
                elif turn == "gap":
                    sequence = (sequence + 5) % 2**31
                elif turn == "bump":
                    epoch, sequence = epoch + 1, 0
                elif turn == "stale":
                    epoch = max(0, epoch - 1)
                producer = (who, epoch, sequence)
                if turn in ("next", "bump"):
                    self.sequences[at, who] = (epoch, (sequence + count) % 2**31)
            given = batch(
                at.partition, count, topic=at.topic_id, size=10 + time, time=time, producer=producer
            )
            batches.append(given)
        self.files += 1
        call = file(f"file-{self.files}", *batches)
        self.calls.append(call)
        self.run(self._commit(call))

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        if self.calls:
            self.run(self._commit(data.draw(st.sampled_from(self.calls))))

    @rule(at=PARTITIONS, data=st.data())
    def delete_records(self, at: PartitionKey, data: st.DataObject) -> None:
        partition = self.model.partitions[at]
        offset = data.draw(st.integers(-1, partition.next + 1))
        deleted = self.run(self.house.service.delete_records(0, [OffsetToDelete(*at, offset)]))[0]
        if offset > partition.next:
            assert deleted.error is ErrorCode.offset_out_of_range
            return
        wanted = partition.next if offset == -1 else offset
        partition.log_start = max(partition.log_start, wanted)
        partition.wal_start = max(partition.wal_start, partition.log_start)
        assert deleted.low_watermark == partition.log_start

    @rule(at=PARTITIONS, data=st.data())
    def prune(self, at: PartitionKey, data: st.DataObject) -> None:
        partition = self.model.partitions[at]
        if partition.wal_start < partition.next:
            to = data.draw(st.integers(partition.wal_start + 1, partition.next))
            call = PruneCall(*at, partition.wal_start, to, 0)
            for _ in range(2):
                assert self.run(self.house.service.prune(0, call)).error is ErrorCode.none
            partition.wal_start = to

    @rule(how=st.sampled_from(["clean", "database lost", "unclean"]))
    def restart(self, how: str) -> None:
        if how == "unclean":
            # The state after a kill: the log, and a database that was not closed cleanly.
            self.house.store._materialiser.database.connection.close(True)  # type: ignore[union-attr]
            self.house.store._materialiser = None
        self.run(self.house.stop())
        if how == "database lost":
            self.house.delete_database()
        self.run(self.house.start())

    @rule()
    def snapshot(self) -> None:
        self.run(self.house.service.snapshot(0))

    @rule()
    def lose_an_append(self) -> None:
        """The log refuses an append. Then the shard is dropped and loaded again, and no part of the commit
        remains."""
        shard = self.house.service.runtime.led(0)
        log = self.house.log
        append, log.append = log.append, refuse  # type: ignore[method-assign]
        try:
            call = file("refused", batch(0, 3, producer=(9, 0, 0)))
            with pytest.raises(KafkaError):
                self.run(self._raw_commit(call))
        finally:
            log.append = append  # type: ignore[method-assign]
        self.run(shard.until_loaded())
        assert self.house.service.is_active(0)

    @rule()
    def release_unused(self) -> None:
        service = self.house.service
        self.settle()
        keys = [found.object_key for found in service.free_files(0, 1 << 60)]
        live = self.model.live_by_file()
        committed = {call.object_key for call in self.calls}
        assert set(keys) == committed - set(live) - self.released
        self.run(service.release_files(0, keys))
        self.released.update(keys)

    @rule(data=st.data())
    def close_a_key(self, data: st.DataObject) -> None:
        key = f"file-{self.files + 1}"
        if key not in self.model.closed:
            closed = self.run(self.house.service.close_files(0, [key, "file-1"]))
            assert closed[0].error is ErrorCode.none
            assert (closed[1].error is ErrorCode.none) == ("file-1" not in self.model.answers)
            self.model.closed.add(key)
            if "file-1" not in self.model.answers:
                self.model.closed.add("file-1")
        self.files += 1
        call = file(key, batch(0))
        self.run(self._commit(call))

    def settle(self) -> None:
        store = self.house.store
        store.write_all()
        while store.materialiser.to_trim:
            store.materialiser.trim_some(self.house.clock.now_ms())

    @rule()
    def write(self) -> None:
        self.house.store.write_all()

    @rule()
    def count_references(self) -> None:
        self.settle()
        live = self.model.live_by_file()
        for found in self.run(self.house.service.list_files(0)):
            sizes = live.get(found.object_key, [])
            assert (found.live_batches, found.used_bytes) == (len(sizes), sum(sizes))
        assert set(live) <= {found.object_key for found in self.run(self.house.service.list_files(0))}
        for partition in self.run(self.house.service.describe_topics(0)):
            model = self.model.partitions[PartitionKey(*partition[:2])]
            assert partition.size_bytes == sum(found.size for found in model.live())
            assert partition.batches == len(model.live())

    @rule(at=PARTITIONS, time=st.integers(0, 55))
    def by_timestamp(self, at: PartitionKey, time: int) -> None:
        partition = self.model.partitions[at]
        listed = self.run(self.house.service.list_offsets(0, [TimestampToList(*at, time)]))[0]
        expected = next((found.base for found in partition.live() if found.time >= time), -1)
        assert listed.offset == expected

    @invariant()
    def batches_are_where_they_should_be(self) -> None:
        wanted = [
            PartitionToFind(at.topic_id, at.partition, found.wal_start)
            for at, found in self.model.partitions.items()
        ]
        found = self.run(self.house.service.find_batches(0, FindBatchesCall(wanted)))
        for partition, model in zip(found, self.model.partitions.values(), strict=True):
            assert partition.high_watermark == model.next
            assert partition.log_start_offset == model.log_start
            assert partition.wal_start_offset == model.wal_start
            assert [
                (b.base_offset, b.last_offset, b.object_key, b.byte_offset, b.size_bytes)
                for b in partition.batches
            ] == [(b.base, b.last, b.key, b.byte_offset, b.size) for b in model.live()]

    @invariant()
    def producers_are_as_replay_says(self) -> None:
        """The windows of producers after a decision are equal to the windows after a replay of the log."""
        shard: DisklessShard = self.house.service.runtime.led(0).shard
        for at, model in self.model.partitions.items():
            state = shard.partitions.find(*at)
            assert state is not None
            assert {
                producer: (opened(window).epoch, [entry[:3] for entry in opened(window).entries])
                for producer, window in state.producers.items()
            } == {producer: (epoch, window[-5:]) for producer, (epoch, window) in model.producers.items()}


CoordinatorHistory.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestCoordinatorHistory = CoordinatorHistory.TestCase
