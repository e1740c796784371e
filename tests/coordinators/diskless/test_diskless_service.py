"""The service on real files: commits, reads, deletions, freed files, snapshots and restarts."""

import asyncio
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from diskless_house import OTHER, TOPIC, House, batch, file, topic

from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, InternalTopic
from moldau.coordinators.diskless.calls import (
    FENCE_ONLY,
    HELD,
    MAX_FILE_BATCHES,
    AbortedRange,
    FindBatchesCall,
    FoundPartition,
    OffsetToDelete,
    PartitionToFind,
    PruneCall,
    RetentionPolicy,
    TimestampToList,
)
from moldau.coordinators.diskless.handlers import CALLS
from moldau.coordinators.diskless.service import DisklessCoordinator
from moldau.coordinators.diskless.state.file_memory import FileMemory
from moldau.coordinators.diskless.state.transactions import AbortedExtent, PartitionTransactions
from moldau.coordinators.diskless.store.database import Database
from moldau.coordinators.diskless.store.materialiser import DELETED_PARTITIONS
from moldau.coordinators.diskless.store.schema import SqliteOpener, open_sqlite
from moldau.coordinators.hosted import HostedKind
from moldau.diskless.upkeep.coordinator_upkeep import CoordinatorUpkeep
from moldau.metrics import Meters
from moldau.protocol.codec import decode_request, decode_response, encode_request, encode_response
from moldau.protocol.own.diskless import create_partitions, describe_topics, find_batches, oldest_file
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.coordinators.entry import entry_of
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.testing.lone_partition import lead_alone


def run(scene) -> None:  # type: ignore[no-untyped-def]
    asyncio.run(asyncio.wait_for(scene, 600))


def test_a_topic_of_many_partitions_is_deleted_in_several_transactions(tmp_path: Path) -> None:
    """The partitions of one record are marked in slices. Other tasks of the event loop run between the
    slices."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        count = 4 * DELETED_PARTITIONS + 500
        await service.create_partitions(0, [topic(partitions=count)])
        await service.create_partitions(0, [topic(1, OTHER)])
        store = house.store
        await store.catch_up()

        def living() -> int:
            (found,) = store.database.one("select count(*) from partitions where not deleted") or (0,)
            return found

        async def delete() -> None:
            await service.delete_topics(0, [TOPIC])
            await store.catch_up()

        # The timer of the store may write the first slices before the deletion returns.
        seen, writing = [living()], asyncio.ensure_future(delete())
        while not writing.done():
            await asyncio.sleep(0)
            seen.append(living())
        assert (seen[0], seen[-1]) == (count + 1, 1)
        # Two slices may be written in one iteration of the event loop, because the timer of the store may
        # write a slice, too.
        assert max(before - after for before, after in pairwise(seen)) <= 2 * DELETED_PARTITIONS
        assert await service.topic_ids(0) == {OTHER}
        await house.stop()
        service = await house.start()
        assert await service.topic_ids(0) == {OTHER}
        await house.stop()

    run(scene())


def test_committed_batches_are_found(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        result = await service.commit_file(0, file("f1", batch(0, 3), batch(1, 2), batch(0, 1)))
        assert [found.base_offset for found in result.batches] == [0, 0, 3]
        for _ in range(2):  # the first call reads the tail in memory, the second call reads SQLite
            found = await service.find_batches(0, FindBatchesCall([PartitionToFind(TOPIC, 0, 2)]))
            assert [(b.base_offset, b.last_offset, b.byte_offset) for b in found[0].batches] == [
                (0, 2, 0),
                (3, 3, 200),
            ]
            assert found[0].high_watermark == 4
            house.store.write_all()
        await house.stop()

    run(scene())


@pytest.mark.parametrize("lost", ["nothing", "database", "torn"])
def test_the_state_is_the_same_after_a_restart(tmp_path: Path, lost: str) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        for number in range(5):
            await service.commit_file(0, file(f"f{number}", batch(0, 2, producer=(7, 0, 2 * number))))
            if number == 2:
                assert await service.snapshot(0) is not None
        await house.stop()
        if lost == "database":
            house.delete_database()
        if lost == "torn":
            Path(house.database_path).write_bytes(b"not a database")
        service = await house.start()
        again = await service.commit_file(0, file("f4", batch(0, 2, producer=(7, 0, 8))))
        assert again.batches[0].base_offset == 8
        duplicate = await service.commit_file(0, file("new", batch(0, 2, producer=(7, 0, 4))))
        assert duplicate.batches[0].is_duplicate
        assert duplicate.batches[0].base_offset == 4
        found = await service.find_batches(0, FindBatchesCall([PartitionToFind(TOPIC, 0, 0)]))
        assert [b.object_key for b in found[0].batches] == [f"f{number}" for number in range(5)]
        await house.stop()

    run(scene())


def test_the_database_of_another_log_is_not_used(tmp_path: Path) -> None:
    """Two logs may have equal lengths and epochs. Even then, the state of one log must not be used with the
    other log."""

    async def scene() -> None:
        houses = [House(tmp_path / str(number), topic_id=UUID(int=100 + number)) for number in range(2)]
        for number, house in enumerate(houses):
            service = await house.start()
            await service.create_partitions(0, [topic()])
            await service.commit_file(0, file(f"f{number}", batch(0, 1 + number)))
            await house.stop()
        shutil.copy(houses[0].database_path, houses[1].database_path)
        service = await houses[1].start()
        found = await service.find_batches(0, FindBatchesCall([PartitionToFind(TOPIC, 0, 0)]))
        assert [b.object_key for b in found[0].batches] == ["f1"]
        assert found[0].high_watermark == 2
        await houses[1].stop()

    run(scene())


def test_find_waits_for_a_commit(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        call = FindBatchesCall([PartitionToFind(TOPIC, 0, 0)], min_bytes=150, max_wait_ms=10_000)
        waiting = asyncio.ensure_future(service.find_batches(0, call))
        await service.commit_file(0, file("f1", batch(0)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await service.commit_file(0, file("f2", batch(0)))
        found = await waiting
        assert [b.object_key for b in found[0].batches] == ["f1", "f2"]
        assert len(service._waiting) == 0
        await house.stop()

    run(scene())


def test_a_file_is_freed_with_its_last_batch(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(), topic(1, OTHER, "o")])
        await service.commit_file(0, file("mine", batch(0, 5), batch(1, 5)))
        await service.commit_file(0, file("shared", batch(0, 5), batch(0, 5, topic=OTHER), owners=(0, 3)))
        await service.commit_file(0, file("foreign", batch(0, 5), owners=(3, 0)))
        await service.commit_file(0, file("dead", batch(9, 5)))

        async def settle() -> None:
            house.store.write_all()
            while house.store.materialiser.to_trim:
                house.store.materialiser.trim_some(house.clock.now_ms())

        await service.delete_records(0, [OffsetToDelete(TOPIC, 0, 7), OffsetToDelete(TOPIC, 1, -1)])
        await settle()
        assert [free.object_key for free in service.free_files(0, 1 << 60)] == ["mine", "dead"]
        assert service.files_to_hand_over(0) == []
        shared = (await service.describe_files(0, ["shared"]))[0]
        # offset 7 is inside a batch, so this batch stays live
        assert (shared.live_batches, shared.used_bytes) == (2, 200)
        await service.delete_records(0, [OffsetToDelete(TOPIC, 0, 15)])
        await service.delete_topics(0, [OTHER])
        await settle()
        assert [to.object_key for to in service.files_to_hand_over(0)] == ["shared"]
        assert list(service.files_to_hand_over(0)[0].remaining_owner_ids) == [3]
        assert not (await service.describe_files(0, ["foreign"]))[0].has_live_batches
        assert [found.object_key for found in service.files_of_others(0, 1 << 60)] == ["foreign"]
        closed = await service.close_files(0, ["shared", "nobody"])
        assert [found.error for found in closed] == [ErrorCode.invalid_request, ErrorCode.none]
        with pytest.raises(KafkaError) as refused:
            await service.commit_file(0, file("nobody", batch(0)))
        assert refused.value.code is ErrorCode.resource_not_found
        await service.release_files(0, ["mine", "dead", "shared"])
        house.store.write_all()
        assert service.free_files(0, 1 << 60) == []
        assert service.files_to_hand_over(0) == []
        await house.stop()

    run(scene())


def test_simultaneous_deletions_free_a_file_whose_batches_they_delete_together(tmp_path: Path) -> None:
    """The file has two live batches, and each deletion removes one of them. The deletion that is applied last
    must detect that the file is unused."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(), topic(1, OTHER, "o")])
        await service.commit_file(0, file("f1", batch(0, 5), batch(1, 5), batch(0, 5, topic=OTHER)))
        await service.commit_file(0, file("f2", batch(0, 5), batch(0, 5, topic=OTHER)))
        await asyncio.gather(
            service.delete_records(0, [OffsetToDelete(TOPIC, 0, -1)]),
            service.delete_records(0, [OffsetToDelete(TOPIC, 1, -1)]),
            service.delete_topics(0, [OTHER]),
        )
        house.store.write_all()
        while house.store.materialiser.to_trim:
            house.store.materialiser.trim_some(house.clock.now_ms())
        assert sorted(free.object_key for free in service.free_files(0, 1 << 60)) == ["f1", "f2"]
        await house.stop()

    run(scene())


def test_offsets_are_listed_and_retention_and_prune_move_the_starts(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(1)])
        for number in range(40):
            await service.commit_file(0, file(f"f{number}", batch(0, 10, time=1000 * number)))
        for _ in range(2):
            asked = [TimestampToList(TOPIC, 0, time) for time in (-1, -2, -3, -5, 15_500, 10**9)]
            listed = await service.list_offsets(0, asked)
            assert [found.offset for found in listed] == [400, 0, 390, -1, 160, -1]
            house.store.write_all()
        house.clock.time_ms = 10_000
        policy = RetentionPolicy(TOPIC, 0, 5000, -1)
        assert [d.low_watermark for d in await service.apply_retention(0, [policy])] == [50]
        house.store.write_all()
        while house.store.materialiser.to_trim:
            house.store.materialiser.trim_some(0)
        policy = RetentionPolicy(TOPIC, 0, -1, 2000)
        assert [d.low_watermark for d in await service.apply_retention(0, [policy])] == [200]
        assert await service.apply_retention(0, [policy]) == []
        assert (await service.prune(0, PruneCall(TOPIC, 0, 100, 300, 1))).error
        pruned = await service.prune(0, PruneCall(TOPIC, 0, 200, 300, 1))
        assert (pruned.error, pruned.wal_start_offset) == (ErrorCode.none, 300)
        assert (await service.prune(0, PruneCall(TOPIC, 0, 200, 300, 1))).error is ErrorCode.none
        assert await service.apply_retention(0, [policy._replace(retention_bytes=0)]) == []
        found = await service.find_batches(
            0, FindBatchesCall([PartitionToFind(TOPIC, 0, at) for at in (100, 250, 300)])
        )
        assert found[0].error is ErrorCode.offset_out_of_range
        assert found[1].moved_to_tier
        assert not found[1].batches
        assert len(found[2].batches) == 10
        await house.stop()

    run(scene())


def test_a_fence_keeps_older_epochs_from_pruning(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(1)])
        for number in range(4):
            await service.commit_file(0, file(f"f{number}", batch(0, 10)))
        fence = PruneCall(TOPIC, 0, FENCE_ONLY, FENCE_ONLY, 5)
        fenced = await service.prune(0, fence)
        assert (fenced.error, fenced.wal_start_offset, fenced.remote_metadata_position) == (0, 0, -1)
        log_end = (await service.describe_coordinator(0)).log_end_offset
        assert (await service.prune(0, fence)).error is ErrorCode.none
        # a repeated fence writes no record
        assert (await service.describe_coordinator(0)).log_end_offset == log_end
        late = await service.prune(0, PruneCall(TOPIC, 0, 0, 10, 4, 77))
        assert (late.error, late.wal_start_offset) == (ErrorCode.fenced_leader_epoch, 0)
        assert (await service.prune(0, fence._replace(epoch=4))).error is ErrorCode.fenced_leader_epoch
        pruned = await service.prune(0, PruneCall(TOPIC, 0, 0, 20, 5, 99))
        assert (pruned.error, pruned.wal_start_offset) == (ErrorCode.none, 20)
        for restart in range(2):
            fenced = await service.prune(0, fence._replace(epoch=6 + restart))
            assert (fenced.wal_start_offset, fenced.remote_metadata_position) == (20, 99)
            house.store.write_all()
            while house.store.materialiser.to_trim:
                house.store.materialiser.trim_some(0)
            settled = await service.prune(0, fence._replace(epoch=6 + restart))
            assert (settled.wal_size_bytes, settled.wal_batches) == (200, 2)
            await house.stop()
            service = await house.start()
        assert (await service.prune(0, fence)).error is ErrorCode.fenced_leader_epoch
        await house.stop()

    run(scene())


def exclusive(path: str) -> apsw.Connection:
    """Open a database like the simulated file system: with an exclusive lock, so that no second connection
    can read it."""
    connection = apsw.Connection(path)
    connection.pragma("locking_mode", "exclusive")
    return connection


@pytest.mark.parametrize("opener", [open_sqlite, exclusive])
def test_snapshots_are_taken_while_commits_continue(tmp_path: Path, opener: SqliteOpener) -> None:
    async def scene() -> None:
        house = House(tmp_path, opener=opener)
        service = await house.start()
        await service.create_partitions(0, [topic(2)])
        batches = [batch(0, 3, producer=(7, 0, 0)), batch(1, 2)]
        for number in range(80):
            batches[0] = batches[0]._replace(base_sequence=3 * number)
            await service.commit_file(0, file(f"before-{number:03}", *batches))
        taking = asyncio.ensure_future(service.snapshot(0))
        during, refused = 0, []
        while not taking.done():
            try:
                assert len(await service.list_files(0, limit=1000)) == 80 + during
            except KafkaError as error:
                refused.append(error.code)
            batches[0] = batches[0]._replace(base_sequence=3 * (80 + during))
            result = await service.commit_file(0, file(f"during-{during:03}", *batches))
            assert result.batches[0].base_offset == 3 * (80 + during)
            during += 1
            house.store._turn()
        snapshot_id = taking.result()
        assert snapshot_id is not None
        assert snapshot_id.offset <= 82 + during
        assert during > 0
        # A reader beside the writer is refused only if SQLite has a single connection.
        assert set(refused) == ({ErrorCode.coordinator_load_in_progress} if opener is exclusive else set())
        call = FindBatchesCall([PartitionToFind(TOPIC, 0, 0), PartitionToFind(TOPIC, 1, 0)])
        before = await service.find_batches(0, call)
        files = await service.list_files(0)
        await house.stop()
        house.delete_database()
        service = await house.start()
        assert await service.find_batches(0, call) == before
        assert await service.list_files(0) == files
        repeated = await service.commit_file(0, file("before-007", *batches))
        assert [found.base_offset for found in repeated.batches] == [21, 14]
        await house.stop()

    run(scene())


def test_upkeep_takes_snapshots_and_forgets(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        upkeep = CoordinatorUpkeep(service, lambda _: [], Meters(), snapshot_records=5)
        await service.create_partitions(0, [topic(1)])
        for number in range(5):
            await service.commit_file(0, file(f"f{number}", batch(0, producer=(7, 0, number))))
        await upkeep.snapshot_and_expire()
        assert house.snapshot_log.latest_snapshot_id() is not None
        house.clock.time_ms += 40 * 86_400_000
        await upkeep.snapshot_and_expire()
        with pytest.raises(KafkaError) as unknown:
            await service.commit_file(0, file("f1", batch(0)))
        assert unknown.value.code is ErrorCode.operation_not_attempted
        fresh = file("late", batch(0, producer=(7, 0, 0)), created=house.clock.time_ms - 1000)
        assert (await service.commit_file(0, fresh)).batches[0].base_offset == 5
        old = file("old", batch(0), created=house.clock.time_ms - 121_000)
        with pytest.raises(KafkaError) as refused:
            await service.commit_file(0, old)
        assert refused.value.code is ErrorCode.invalid_timestamp
        await house.stop()

    run(scene())


def test_the_apis_over_the_wire(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()

        async def call(api_key: int, request: Message, version: int = 0) -> Any:
            sent = b"".join(encode_request(api_key, version, request))
            response = await CALLS[api_key].answer(
                service, decode_request(api_key, version, sent), version, 0.0
            )
            return decode_response(api_key, version, b"".join(encode_response(api_key, version, response)))

        created = create_partitions.DisklessCreatablePartitions(topic_id=TOPIC, name="t", num_partitions=2)
        await call(11640, create_partitions.REQUEST(topics=[created]))
        commit = file("f1", batch(0, 2), batch(7, 1), batch(1, 3))
        response = await call(11642, CALLS[11642].ask(0, commit, 1, 1000), version=1)
        result = CALLS[11642].read(response)
        assert [(b.error, b.base_offset) for b in result.batches] == [
            (ErrorCode.none, 0),
            (ErrorCode.unknown_topic_or_partition, -1),
            (ErrorCode.none, 0),
        ]
        wanted = find_batches.DisklessFindBatchesPartition(
            partition_index=1, offset=0, max_partition_fetch_bytes=1000
        )
        found = await call(
            11645,
            find_batches.REQUEST(
                fetch_max_bytes=1000,
                topics=[find_batches.DisklessFindBatchesTopic(topic_id=TOPIC, partitions=[wanted])],
            ),
        )
        assert found.topics[0].partitions[0].batches[0].byte_offset == 200
        elsewhere = await call(11650, oldest_file.REQUEST(coordinator_id=3))
        assert elsewhere.error_code is ErrorCode.not_coordinator
        assert (await call(11650, oldest_file.REQUEST())).created_ms == 1_000_000
        described = await call(11654, describe_topics.REQUEST())
        assert [p.high_watermark for p in described.topics[0].partitions] == [2, 3]
        await house.stop()

    run(scene())


def test_the_largest_file_fits_the_log(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic(2)])
        # In the worst case, adjacent batches belong to different partitions, and every number is large.
        batches = [
            batch(at % 2, 1 + at * 7919 % 20_000, size=1 + at * 104_729 % 60_000, time=at * 10**9,
                  producer=(at * 10**6, at % 1000, 0))
            for at in range(MAX_FILE_BATCHES)
        ]  # fmt: skip
        result = await service.commit_file(0, file("f1", *batches))
        assert all(found.error is ErrorCode.none for found in result.batches)
        with pytest.raises(KafkaError) as refused:
            await service.commit_file(0, file("f2", *batches, batch(0)))
        assert refused.value.code is ErrorCode.invalid_request
        assert service.is_active(0)
        await house.stop()

    run(scene())


def test_a_full_disk_does_not_stop_the_close_of_a_database() -> None:
    class Full:
        def close(self, _force: bool) -> None:
            raise apsw.FullError("database or disk is full")

        def pragma(self, *_: Any) -> None:
            raise apsw.FullError("database or disk is full")

    for clean in (True, False):
        database = Database(apsw.Connection(":memory:"), new_for="log")
        database.connection.close()
        database.connection = Full()  # type: ignore[assignment]
        database.close(clean=clean)


def test_find_batches_and_list_offsets_consider_open_and_aborted_transactions(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        for number in range(4):
            await service.commit_file(0, file(f"f{number}", batch(0, 2)))
        partition = house.store.view.find(PartitionKey(TOPIC, 0))
        assert partition is not None

        async def find(offset: int, max_batches: int = 0) -> FoundPartition:
            call = FindBatchesCall([PartitionToFind(TOPIC, 0, offset)], max_batches_per_partition=max_batches)
            return (await service.find_batches(0, call))[0]

        found = await find(0)
        assert (found.high_watermark, found.last_stable_offset, found.aborted) == (8, 8, ())
        aborted = [AbortedRange(7, 0, 3), AbortedRange(8, 2, 5)]
        partition.transactions = PartitionTransactions()
        partition.transactions.restore([(10, 7, -1), (9, 6, -1)])
        partition.aborted.add(AbortedExtent(3, 0, 7, 2))
        partition.aborted.add(AbortedExtent(5, 2, 8, 6))
        found = await find(0)
        assert (found.high_watermark, found.last_stable_offset, found.aborted) == (8, 6, aborted)
        assert (await find(4)).aborted == aborted[1:]
        assert (await find(0, max_batches=1)).aborted == aborted[:1]
        (listed,) = await service.list_offsets(0, [TimestampToList(TOPIC, 0, -1)])
        assert (listed.offset, listed.last_stable_offset) == (8, 6)

        row = find_batches.DisklessFindBatchesPartition(
            partition_index=0, offset=0, max_partition_fetch_bytes=1000
        )
        asked = find_batches.REQUEST(
            fetch_max_bytes=1000,
            topics=[find_batches.DisklessFindBatchesTopic(topic_id=TOPIC, partitions=[row])],
        )
        for version, told in ((0, (-1, [])), (1, (6, [(7, 0, 3), (8, 2, 5)]))):
            response = await CALLS[11645].answer(service, asked, version, 0.0)
            sent = decode_response(11645, version, b"".join(encode_response(11645, version, response)))
            (result,) = sent.topics[0].partitions
            ranges = [(one.producer_id, one.first_offset, one.last_offset) for one in result.aborted]
            assert (result.last_stable_offset, ranges) == told
        await house.stop()

    run(scene())


def test_a_load_with_an_older_epoch_changes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        house.epoch = 4
        service = await house.start()
        entry = entry_of(
            HostedKind("diskless", service.runtime, InternalTopic(DISKLESS_METADATA_TOPIC, 1, 1, ""))
        )
        registry = CoordinatorRegistry([entry])
        partition = lead_alone(house.machine, house.snapshot_log, 5)
        registry.leads(partition, 5)
        await service.until_loaded(0)
        await service.create_partitions(0, [topic()])
        store = house.store
        registry.leads(partition, 3)
        registry.no_longer_leads(partition.topic, partition.key.topic_id, 0, 4)
        described = await service.describe_coordinator(0)
        assert (described.epoch, described.partitions) == (5, 2)
        assert house.store is store
        await house.stop()

    run(scene())


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_jump_of_the_clock_does_not_shorten_the_wait_for_a_missing_batch(
    tmp_path: Path, jump_ms: int
) -> None:
    """If a batch is accepted before its predecessor, the coordinator can never accept this predecessor."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        house.clock.time_ms = 10_000_000

        async def commit(key: str, sequence: int) -> ErrorCode:
            found = await service.commit_file(
                0, file(key, batch(producer=(7, 0, sequence)), created=house.clock.time_ms)
            )
            return found.batches[0].error

        assert await commit("f1", 5) is HELD
        house.clock.time_ms += jump_ms
        assert await commit("f2", 5) is HELD
        assert await commit("f3", 0) is ErrorCode.none
        await house.stop()

    run(scene())


def upkeep_of(service: DisklessCoordinator) -> CoordinatorUpkeep:
    return CoordinatorUpkeep(service, lambda _: [], Meters(), snapshot_records=5)


def test_a_result_is_kept_if_the_coordinators_clock_was_behind(tmp_path: Path) -> None:
    """A commit is repeated while its file is young according to the writer. The coordinator's own clock was
    an hour behind at the first commit, and is right now."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        house.clock.time_ms = 10_000_000
        call = file("f", batch(0, 3), created=house.clock.time_ms + 3_600_000)
        assert (await service.commit_file(0, call)).batches[0].base_offset == 0
        house.clock.time_ms += 3_605_000
        await upkeep_of(service).snapshot_and_expire()
        for _ in range(2):
            assert (await service.commit_file(0, call)).batches[0].base_offset == 0
            house.store.write_all()
            await house.stop()
            service = await house.start()
        house.clock.time_ms += 301_000
        await upkeep_of(service).snapshot_and_expire()
        with pytest.raises(KafkaError) as forgotten:
            await service.commit_file(0, call)
        assert forgotten.value.code is ErrorCode.operation_not_attempted
        await house.stop()

    run(scene())


def test_a_file_that_is_committed_twice_does_not_stop_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has forgotten the first commit. The batches of both commits are in one object, which is
    needed until the last of them is deleted."""

    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await service.create_partitions(0, [topic()])
        monkeypatch.setattr(FileMemory, "result", lambda self, key: None)
        call = file("f", batch(0, 3), batch(1, 2))
        for is_written in (False, True, False):
            await service.commit_file(0, call)
            if is_written:
                house.store.write_all()
        for _ in range(2):
            found = await service.find_batches(0, FindBatchesCall([PartitionToFind(TOPIC, 0, 0)]))
            assert [(b.object_key, b.base_offset, b.byte_offset) for b in found[0].batches] == [
                ("f", 0, 0),
                ("f", 3, 0),
                ("f", 6, 0),
            ]
            house.store.write_all()
        described = (await service.describe_files(0, ["f"]))[0]
        assert (described.live_batches, described.used_bytes) == (6, 600)
        await house.stop()
        service = await house.start()
        await service.delete_records(0, [OffsetToDelete(TOPIC, 0, -1), OffsetToDelete(TOPIC, 1, 4)])
        house.store.write_all()
        while house.store.materialiser.to_trim:
            house.store.materialiser.trim_some(house.clock.now_ms())
        assert service.free_files(0, 1 << 60) == []
        await service.delete_records(0, [OffsetToDelete(TOPIC, 1, -1)])
        house.store.write_all()
        while house.store.materialiser.to_trim:
            house.store.materialiser.trim_some(house.clock.now_ms())
        assert [free.object_key for free in service.free_files(0, 1 << 60)] == ["f"]
        await house.stop()

    run(scene())
