"""Transactions of diskless partitions: the state that readers get. This state must be the same after
restarts, snapshots and rebuilds."""

import asyncio
from pathlib import Path

import pytest
from diskless_house import TOPIC, House, batch, file, topic

from moldau.coordinators.diskless.calls import (
    TRANSACTIONAL,
    AbortedRange,
    FindBatchesCall,
    FoundPartition,
    GuardToIssue,
    MarkerToWrite,
    OffsetToDelete,
    PartitionToFind,
    TransactionEnd,
)
from moldau.coordinators.diskless.calls.subjects.transactions import END_TRANSACTIONS
from moldau.coordinators.diskless.store import snapshot_format
from moldau.protocol.codec import decode_request, encode_request
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode


def test_a_request_keeps_the_position_of_the_outcome_of_a_marker() -> None:
    marker = MarkerToWrite(TOPIC, 1, 7, 3, 2, True, 2, decision_partition=4, decision_offset=1 << 40)
    key = END_TRANSACTIONS.request.API_KEY
    sent = b"".join(encode_request(key, 0, END_TRANSACTIONS.ask(0, [marker], 0, 1_000)))
    assert END_TRANSACTIONS.arguments(decode_request(key, 0, sent)) == [marker]


async def write(house: House, key: str, producer_id: int, sequence: int, records: int = 2) -> int:
    """Write a transactional batch with the current guard. Returns its base offset."""
    service = house.service
    (issued,) = await service.guard_transactions(0, [GuardToIssue(TOPIC, 0, producer_id, 0)])
    made = batch(0, records, producer=(producer_id, 0, sequence))
    call = file(key, made._replace(flags=TRANSACTIONAL, guard=issued.guard))
    (result,) = (await service.commit_file(0, call)).batches
    assert result.error is ErrorCode.none
    return result.base_offset


async def end(house: House, producer_id: int, *, committed: bool, coordinator_epoch: int = 1) -> ErrorCode:
    marker = MarkerToWrite(TOPIC, 0, producer_id, 0, coordinator_epoch, committed)
    (ended,) = await house.service.end_transactions(0, [marker])
    return ended.error


async def find(house: House, offset: int) -> FoundPartition:
    call = FindBatchesCall([PartitionToFind(TOPIC, 0, offset)])
    return (await house.service.find_batches(0, call))[0]


async def some_transactions(house: House) -> None:
    """The marker at offset 4 aborts offsets 0 and 1. The marker at 5 commits 2 and 3. Offsets 6 and 7 are
    open. The marker at 10 aborts 8 and 9."""
    await house.service.create_partitions(0, [topic()])
    await write(house, "a", 7, 0)
    await write(house, "b", 8, 0)
    assert await end(house, 7, committed=False) is ErrorCode.none
    assert await end(house, 8, committed=True) is ErrorCode.none
    await write(house, "c", 9, 0)
    await write(house, "d", 7, 2)
    assert await end(house, 7, committed=False, coordinator_epoch=3) is ErrorCode.none


@pytest.mark.parametrize("loss", ["none", "database", "snapshot", "snapshot and database"])
def test_transactions_are_found_again_after_a_restart(tmp_path: Path, loss: str) -> None:
    restart(tmp_path, loss)


def test_a_snapshot_without_transactions_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_format, "TABLE_NAMES", snapshot_format.TABLE_NAMES[:6])
    with pytest.raises(AssertionError):
        restart(tmp_path, "snapshot and database")


def restart(tmp_path: Path, loss: str) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        await house.start()
        await some_transactions(house)
        if "snapshot" in loss:
            assert await house.service.snapshot(0) is not None
        await house.stop()
        if "database" in loss:
            house.delete_database()
        await house.start()
        found = await find(house, 0)
        assert (found.high_watermark, found.last_stable_offset) == (11, 6)
        assert found.aborted == [AbortedRange(7, 0, 4), AbortedRange(7, 8, 10)]
        assert [one.marker for one in found.batches if one.marker is not None] == [
            TransactionEnd(7, 0, 1, False),
            TransactionEnd(8, 0, 1, True),
            TransactionEnd(7, 0, 3, False),
        ]
        assert [(one.base_offset, one.object_key) for one in found.batches] == [
            *((0, "a"), (2, "b"), (4, ""), (5, ""), (6, "c"), (8, "d"), (10, "")),
        ]
        assert all(one.is_transactional for one in found.batches)
        assert (await find(house, 5)).aborted == [AbortedRange(7, 8, 10)]
        assert await end(house, 7, committed=True, coordinator_epoch=2) is (
            ErrorCode.transaction_coordinator_fenced
        )
        await end(house, 9, committed=True)
        assert (await find(house, 0)).last_stable_offset == 12
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 600))


def test_deleted_records_take_their_transactions_with_them(tmp_path: Path) -> None:
    async def scene() -> None:
        house = House(tmp_path)
        service = await house.start()
        await some_transactions(house)
        await service.delete_records(0, [OffsetToDelete(TOPIC, 0, 7)])
        found = await find(house, 7)
        assert (found.last_stable_offset, found.aborted) == (7, [AbortedRange(7, 8, 10)])
        partition = house.store.view.find(PartitionKey(TOPIC, 0))
        assert partition is not None
        assert [each.last_offset for each in partition.aborted] == [10]
        house.store.write_all()
        while house.store.materialiser.to_trim:
            house.store.materialiser.trim_some(house.clock.now_ms())
        assert len(list(house.store.database.all("select * from aborted"))) == 1
        assert house.store.materialiser.partitions[partition.number].batches == 3
        await house.stop()

    asyncio.run(asyncio.wait_for(scene(), 600))


@pytest.mark.parametrize("restarted", [False, True])
def test_producers_are_described_with_their_open_transactions(tmp_path: Path, restarted: bool) -> None:
    async def story() -> None:
        house = House(tmp_path)
        await house.start()
        await some_transactions(house)
        if restarted:
            await house.stop()
            house = House(tmp_path)
            await house.start()
        known, unknown = await house.service.describe_producers(
            0, [PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 9)]
        )
        rows = {each.producer_id: (each.coordinator_epoch, each[5]) for each in known.producers}
        assert rows == {7: (3, -1), 8: (1, -1), 9: (-1, 6)}
        open_one = next(each for each in known.producers if each.producer_id == 9)
        assert (open_one.producer_epoch, open_one.last_sequence) == (0, 1)
        assert unknown.error is ErrorCode.unknown_topic_or_partition
        await house.stop()

    asyncio.run(story())
