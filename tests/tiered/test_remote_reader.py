"""Remote reads: the batches that they return, their limits, and failures of the tier."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_house import PARTITION, House

from moldau.cluster.image.log_generations import LogGenerations
from moldau.records.batch import iter_headers
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset, ReadOutcome
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.byte_quota import QuotaSettings
from moldau.storage.log.leader_epochs import LeaderEpochs
from moldau.tiered.metadata.lineage import LogLineage
from moldau.tiered.metadata.manager import MetadataPosition
from moldau.tiered.reading.list_offsets import RemoteOffsetSearch
from moldau.tiered.reading.reader import ReaderSettings
from moldau.tiered.reading.requests import RemoteRange
from moldau.tiered.storage.storage_manager import RemoteStorageError

Story = Callable[[House], Awaitable[None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        house = House(tmp_path)
        await house.indexes.start()
        async with asyncio.timeout(200):
            await story(house)
        await house.reader.close()
        await house.indexes.close()

    return lambda story: asyncio.run(told(story))


def lookup_of(house: House) -> RecordLookup:
    return RecordLookup(house.machine, None, "t-0")


def offsets(found: ReadOutcome) -> list[tuple[int, int]]:
    """First and last offset of each batch."""
    assert found.error is ErrorCode.none
    content = memoryview(b"".join(found.views))
    headers = [header for _, header in iter_headers(content)]
    assert sum(header.size_bytes for header in headers) == len(content) == found.size_bytes
    return [(header.base_offset, header.last_offset) for header in headers]


def test_remote_reads_return_the_bytes_of_the_log_for_every_offset_and_limit(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        for count in (1, 2, 3, 1, 5, 2):
            house.append(*(b"x" * 40 * n for n in range(count)))
            house.append(b"y" * 300)
            house.log.roll()
        expected: dict[tuple[int, int, bool], bytes] = {}
        limits = (1, 100, 500, 2_000)
        for offset in range(house.log.log_end_offset):
            for limit in limits:
                for whole in (True, False):
                    found = house.log.read(offset, limit, min_one_batch=whole)
                    expected[offset, limit, whole] = b"".join(found.views)
        await house.copying.run()
        await house.free()
        assert house.log.local_log_start_offset == house.log.log_end_offset == 20
        for (offset, limit, whole), content in expected.items():
            found = await house.read(offset, limit, min_one_batch=whole)
            assert b"".join(found.views) == content, (offset, limit, whole)

    play(story)


def test_the_next_read_needs_no_index(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1, batches=30)
        await house.copying.run()
        await house.free()
        first = offsets(await house.read(0, 700))
        before = house.faults.count
        second = offsets(await house.read(first[-1][1] + 1, 700))
        assert second[0][0] == first[-1][1] + 1
        assert house.faults.count == before + 1, "one ranged read"

    play(story)


def test_records_of_an_old_leader_after_its_epoch_are_not_read(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1, batches=6, epoch=0)
        await house.copying.run()
        history = LeaderEpochs(house.log.leader_epochs.entries)
        history.assign(5, 4)
        wanted = house.wanted(0)
        other = RemoteRange(
            partition=PARTITION, lineage=LogLineage(history), end_offset=6, log_start=lambda: 0
        )
        assert other.bound_at(0, house.metadata.cache.list()[0]) == 4
        found = await house.reader.fetch(replace(wanted, lineage=LogLineage(history), end_offset=6))
        assert found.next_offset == 4
        with pytest.raises(RemoteStorageError):
            await house.reader.fetch(replace(wanted, lineage=LogLineage(history), end_offset=6, offset=4))

    play(story)


def test_a_log_with_only_one_generation_can_be_read(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        wanted = replace(house.wanted(4), lineage=LogGenerations(), end_offset=6)
        assert offsets(await house.reader.read(wanted, ReadOutcome())) == [(4, 4), (5, 5)]

    play(story)


def test_aborted_transactions_are_returned_at_any_position_of_their_marker(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        house.append(b"a", producer=(7, 0))
        house.append(b"b", producer=(8, 0))
        house.log.roll()
        house.append(b"plain")
        house.end_transaction(7, commit=False)
        house.log.roll()
        house.append(b"plain")
        house.log.roll()
        house.end_transaction(8, commit=False)
        house.append(b"c", producer=(9, 0))
        house.end_transaction(9, commit=True)
        await house.copying.run()
        await house.free()
        assert house.log.local_log_start_offset == 5
        known = {7: AbortedTransaction(7, 0), 8: AbortedTransaction(8, 1)}
        found = await house.read(0, read_committed=True)
        assert offsets(found) == [(0, 0), (1, 1)]
        assert sorted(found.aborted or ()) == [known[7], known[8]]
        found = await house.read(4, read_committed=True)
        assert found.aborted == [known[8]], "the first one was over"
        assert (await house.read(0)).aborted is None

    play(story)


def test_a_failed_tier_is_an_error_of_the_server_and_a_deleted_offset_is_out_of_range(
    play: Callable[[Story], None],
) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        await house.free()
        house.faults.fail_at = house.faults.count + 1
        assert (await house.read(0)).error is ErrorCode.unknown_server_error
        assert offsets(await house.read(0)) == [(0, 0), (1, 1), (2, 2)]
        await house.storage.objects.delete(await house.storage.keys())
        assert (await house.read(1)).error is ErrorCode.unknown_server_error
        house.log.update_log_start_offset(4)
        assert (await house.read(1)).error is ErrorCode.offset_out_of_range

    play(story)


def test_a_read_continues_in_the_local_part_if_no_remote_batch_is_left(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        await house.free()
        # The object looks as if compaction had removed the last batch of the first segment before the topic
        # became tiered.
        first, second = sorted(await house.storage.keys())[1], sorted(await house.storage.keys())[3]
        assert first.endswith(".log")
        content = bytes(await house.storage.objects.fetch(first, 0, 80))
        size = int.from_bytes(content[8:12], "big") + 12
        metadata = house.metadata.cache.list()
        for segment, key in zip(metadata, (first, second), strict=True):
            whole = await house.storage.objects.fetch(key, 0, segment.segment_size_bytes)
            await house.storage.objects.delete([key])
            await house.storage.objects.upload(key, bytes(whole[: 2 * size]), 2 * size)
            house.metadata.cache.put(replace(segment, segment_size_bytes=2 * size))
        assert offsets(await house.read(2)) == [(3, 3), (4, 4)], "the next segment goes on"
        behind = ReadOutcome(high_watermark=99)
        assert await house.read(5, read_behind=lambda: behind) == behind

    play(story)


class Gate:
    """Blocks every read of a remote segment until the test sets ``open``."""

    def __init__(self, house: House) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.reached = asyncio.Event()
        fetch = house.storage.fetch_log_segment

        async def gated(*arguments: Any) -> memoryview:
            self.waiting += 1
            self.reached.set()
            await self.open.wait()
            return await fetch(*arguments)

        house.storage.fetch_log_segment = gated  # type: ignore[method-assign]


def test_a_late_result_is_kept_for_the_next_read(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        await house.free()
        reader = house.new_reader(ReaderSettings(fetch_max_wait_ms=10))
        gate = Gate(house)
        known = ReadOutcome(high_watermark=3, log_start_offset=0)
        assert await reader.read(house.wanted(0), known) == known, "no records and no error: ask again"
        assert await reader.read(house.wanted(0), known) == known
        await gate.reached.wait()
        assert gate.waiting == 1, "the same read"
        gate.open.set()
        await asyncio.sleep(0)
        while not offsets(await reader.read(house.wanted(0), known)):
            pass
        assert gate.waiting == 1

    play(story)


def test_a_read_waits_until_the_metadata_of_its_segments_are_read(play: Callable[[Story], None]) -> None:
    """Another broker has moved the records to the tier a moment ago. Clients get no error. The first response
    contains no records, and the next response contains them. Searches by time wait, too."""

    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        await house.free()
        position = MetadataPosition(2, 70)
        applied = asyncio.Event()
        find = house.metadata.remote_log_segment_metadata

        async def wait_applied(wanted: MetadataPosition) -> None:
            assert wanted == position
            await applied.wait()

        house.metadata.wait_applied = wait_applied  # type: ignore[method-assign]
        house.metadata.remote_log_segment_metadata = (  # type: ignore[method-assign]
            lambda *given: find(*given) if applied.is_set() else None
        )
        reader = house.new_reader(ReaderSettings(fetch_max_wait_ms=10))
        wanted = replace(house.wanted(0), metadata_position=position)
        assert await reader.read(wanted, ReadOutcome()) == ReadOutcome()
        whole = RemoteRange(
            partition=PARTITION,
            lineage=LogLineage(house.log.leader_epochs),
            end_offset=house.log.log_end_offset,
            log_start=lambda: 0,
            metadata_position=position,
        )
        searching = RemoteOffsetSearch(reader).find_timestamp(whole, 0, 0, lookup_of(house))
        search = asyncio.ensure_future(searching)
        applied.set()
        found = await search
        assert found is not None
        assert found.offset == 0
        while not offsets(await reader.read(wanted, ReadOutcome())):
            pass

    play(story)


@pytest.mark.parametrize("is_max", [False, True])
def test_a_search_by_time_ends_at_the_deadline_of_its_request(
    play: Callable[[Story], None], is_max: bool
) -> None:
    """The configured time-out does not count for such a request, whether it is longer or shorter."""

    async def story(house: House) -> None:
        house.fill(1)
        await house.copying.run()
        await house.free()
        gate, now_s = Gate(house), asyncio.get_running_loop().time()

        def search(config_ms: int, deadline_s: float) -> Coroutine[Any, Any, FoundOffset | None]:
            reader = house.new_reader(ReaderSettings(list_offsets_timeout_ms=config_ms))
            lookup = RecordLookup(house.machine, None, "t-0", deadline_s)
            remote = RemoteOffsetSearch(reader)
            find = remote.find_max_timestamp if is_max else remote.find_timestamp
            return find(house.wanted(0), 0, 0, lookup)

        with pytest.raises(KafkaError, match="did not answer in time") as refused:
            await search(3_600_000, now_s + 0.01)
        assert refused.value.code is ErrorCode.request_timed_out
        late = asyncio.ensure_future(search(0, now_s + 3_600))
        while gate.waiting < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.open.set()
        assert await late is not None

    play(story)


def test_late_answers_are_kept_within_a_bound(
    play: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.tiered.reading.reader.KEPT_BYTES_MAX", 200)
    monkeypatch.setattr("moldau.tiered.reading.reader.KEPT_S", 600.0)

    async def story(house: House) -> None:
        house.fill(1, batches=6)
        await house.copying.run()
        await house.free()
        reader = house.new_reader(ReaderSettings(fetch_max_wait_ms=10))
        # The index of the segment is cached, so no read waits for the index. Therefore the reads reach the
        # storage manager in the order of their offsets.
        await house.indexes.lookup_offset(house.metadata.cache.list()[0], 0)
        gate = Gate(house)
        wanted = [house.wanted(offset, 1) for offset in range(6)]  # each read returns a batch of 75 bytes
        known = ReadOutcome(high_watermark=6, log_start_offset=0)
        assert await asyncio.gather(*(reader.read(each, known) for each in wanted)) == [known] * 6
        while gate.waiting < 6:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.open.set()
        await reader.idle()
        assert reader.kept_bytes <= 200
        for each in (wanted[5], wanted[4]):
            assert offsets(await reader.read(each, known))
        assert gate.waiting == 6, "the newest are there"
        assert reader.kept_bytes == 0
        reader.settings = ReaderSettings()
        assert offsets(await reader.read(wanted[0], known))
        assert gate.waiting == 7, "the oldest is read again"

    play(story)


def test_the_pool_and_its_queue_are_bounded(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1, batches=6)
        await house.copying.run()
        await house.free()
        reader = house.new_reader(ReaderSettings(threads=1, max_pending_tasks=1, fetch_max_wait_ms=60_000))
        gate = Gate(house)
        first, second = (reader.read(house.wanted(offset), ReadOutcome()) for offset in (0, 1))
        await gate.reached.wait()
        assert reader.pool.waiting_count == 1
        refused = reader.read(house.wanted(2), ReadOutcome())
        assert refused.done()
        assert not refused.result().size_bytes
        with pytest.raises(KafkaError, match="too many remote reads"):
            await RemoteOffsetSearch(reader).find_timestamp(house.wanted(0), 0, 1, lookup_of(house))
        gate.open.set()
        assert offsets(await first)[0] == (0, 0)
        assert offsets(await second)[0] == (1, 1)
        assert reader.pool.idle_share == 1.0

    play(story)


def test_a_request_whose_byte_limit_is_used_up_fetches_nothing(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(2)
        await house.copying.run()
        await house.free()
        before, known = house.faults.count, ReadOutcome(high_watermark=6, log_start_offset=0)
        assert await house.read(0, max_bytes=0, min_one_batch=False) == ReadOutcome()
        assert await house.reader.read(house.wanted(1, 0, min_one_batch=False), known) == known
        assert house.faults.count == before
        assert offsets(await house.read(0, max_bytes=0)) == [(0, 0)]

    play(story)


def test_reads_beyond_the_quota_are_put_off(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        house.fill(1, batches=6)
        await house.copying.run()
        await house.free()
        quota = QuotaSettings(bytes_per_second=1)
        reader = house.new_reader(ReaderSettings(fetch_quota=quota))
        assert offsets(await reader.read(house.wanted(0), ReadOutcome()))
        assert (await reader.read(house.wanted(1), ReadOutcome())).size_bytes == 0
        reader.settings = ReaderSettings()
        assert offsets(await reader.read(house.wanted(1), ReadOutcome()))

    play(story)


def test_times_are_searched_in_the_remote_part_alone(play: Callable[[Story], None]) -> None:
    async def story(house: House) -> None:
        start_ms = house.clock.time_ms
        house.fill(3)
        await house.copying.run()
        await house.free()
        search, lookup = RemoteOffsetSearch(house.reader), lookup_of(house)
        wanted = RemoteRange(
            partition=PARTITION,
            lineage=LogLineage(house.log.leader_epochs),
            end_offset=8,
            log_start=lambda: 0,
        )
        for offset in range(8):
            found = await search.find_timestamp(wanted, 0, start_ms + 1_000 * offset - 1, lookup)
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (offset, start_ms + 1_000 * offset)
        assert await search.find_timestamp(wanted, 0, start_ms + 8_000, lookup) is None, "it lies behind"
        found = await search.find_timestamp(wanted, 5, 0, lookup)
        assert found is not None
        assert found.offset == 5, "the log begins there"
        latest = await search.find_max_timestamp(wanted, 0, -1, lookup)
        assert latest is None or latest.offset <= 7
        house.faults.fail_at = house.faults.count + 1
        with pytest.raises(KafkaError) as caught:
            await search.find_timestamp(wanted, 0, start_ms + 1, lookup)
        assert caught.value.code is ErrorCode.unknown_server_error

    play(story)
