"""A restore ends the transactions that were open when the logs were saved.

Diskless partitions are saved later than the logs of the transaction coordinators. The tests write the saved
logs of each moment.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saved_cluster import NAME, SavedCluster

from moldau.backup.restore import restoring
from moldau.backup.restore.revoked_commits import SavedDecisions
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC
from moldau.protocol.records import transactions as schema

ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT = 1, 2, 3, 4
STRAY, LATER, KNOWN, DECIDED = 7, 8, 9, 10
"""The producer ids of four transactions. A test saves different states of these transactions."""


def _value(
    producer_id: int, status: int, partitions: Sequence[int] = (), topic: str = NAME
) -> schema.TransactionLogValue:
    rows = [schema.PartitionsSchema(topic=topic, partition_ids=partitions)] if partitions else []
    return schema.TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=rows,
    )


async def _restore_open_transactions(folder: Path) -> None:
    cluster = SavedCluster(folder, count=2)
    await cluster.save_transactions(
        {
            "later": _value(LATER, COMPLETE_COMMIT),
            "known": _value(KNOWN, ONGOING, [0]),
            "decided": _value(DECIDED, PREPARE_COMMIT, [0]),
        }
    )
    # The saved logs of the transaction coordinator do not contain the transaction of STRAY. The saved
    # transaction of LATER is complete, and the next transaction of LATER began after the save. KNOWN has
    # added partition 1 after the save.
    async with cluster.saving_partition(0) as partition:
        for producer_id in (STRAY, LATER, KNOWN, DECIDED):
            await partition.write(producer_id, 0)
    async with cluster.saving_partition(1) as partition:
        await partition.write(KNOWN, 0)
    report = await cluster.restore()
    first, second = [await cluster.find(index) for index in range(2)]
    # Only the transaction of DECIDED is open. The transaction coordinator commits it after the start of the
    # restored cluster.
    assert first.last_stable_offset == 6
    assert second.last_stable_offset == second.high_watermark
    assert {(each.producer_id, each.first_offset) for each in first.aborted} == {
        (STRAY, 0),
        (LATER, 2),
        (KNOWN, 4),
    }
    assert [(each.producer_id, each.first_offset) for each in second.aborted] == [(KNOWN, 0)]
    assert report.aborted_transactions == 3
    # The old cluster may have other records at the offsets of the new markers.
    assert [cluster.generation_starts(index) for index in range(2)] == [(8,), (2,)]
    statuses = {name: value.transaction_status for name, value in cluster.transactions().items()}
    assert statuses == {"later": COMPLETE_COMMIT, "known": PREPARE_ABORT, "decided": PREPARE_COMMIT}


def test_open_transactions_are_aborted_except_those_whose_commit_is_decided(tmp_path: Path) -> None:
    asyncio.run(_restore_open_transactions(tmp_path))


async def _restore_a_commit_during_the_save(folder: Path) -> None:
    cluster = SavedCluster(folder, count=2)
    await cluster.save_transactions(
        {"known": _value(KNOWN, COMPLETE_COMMIT), "later": _value(LATER, ONGOING, [0, 1])}
    )
    # The outcome of LATER is the next record of the log. Partition 1 was saved before it got the marker of
    # LATER.
    async with cluster.saving_partition(0) as partition:
        await partition.write(KNOWN, 0)
        await partition.write(LATER, 0)
        await partition.commit(KNOWN, 0, decided_at=0)
        await partition.commit(LATER, 0, decided_at=2)
        await partition.write(STRAY, 0)
        await partition.commit(STRAY, 0, decided_at=3)
    async with cluster.saving_partition(1) as partition:
        await partition.write(LATER, 0)
    report = await cluster.restore()
    first, second = [await cluster.find(index) for index in range(2)]
    aborted = {(each.producer_id, each.first_offset) for each in first.aborted}
    assert aborted == {(LATER, 2), (STRAY, 6)}
    assert [(each.producer_id, each.first_offset) for each in second.aborted] == [(LATER, 0)]
    assert [each.last_stable_offset for each in (first, second)] == [9, 3]
    assert report.aborted_transactions == 2
    # Consumers have read the records of LATER. The next offset of these consumers is after the marker of
    # LATER, so they notice that the log was truncated.
    assert [cluster.generation_starts(index) for index in range(2)] == [(5,), (2,)]


def test_a_commit_during_the_save_is_revoked_in_all_partitions(tmp_path: Path) -> None:
    asyncio.run(_restore_a_commit_during_the_save(tmp_path))


def _revoke_nothing(decisions: SavedDecisions, pieces: Any) -> Any:
    """Inserted defect: the restore keeps the markers of commits that were decided after the transaction log
    was saved."""
    return pieces


def test_a_transaction_that_is_committed_in_part_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SavedDecisions, "without_later", _revoke_nothing)
    with pytest.raises(AssertionError, match=r"\(8, 2\)"):
        asyncio.run(_restore_a_commit_during_the_save(tmp_path))


async def _restore_a_transaction_after_a_decided_one(folder: Path) -> None:
    cluster = SavedCluster(folder, count=2)
    await cluster.save_transactions({"decided": _value(DECIDED, PREPARE_COMMIT, [0, 1])})
    async with cluster.saving_partition(0) as partition:
        await partition.write(DECIDED, 0)
        await partition.commit(DECIDED, 0, decided_at=0)
        await partition.write(DECIDED, 0, sequence=2)
    async with cluster.saving_partition(1) as partition:
        await partition.write(DECIDED, 0)
    await cluster.restore()
    first, second = [await cluster.find(index) for index in range(2)]
    assert [(each.producer_id, each.first_offset) for each in first.aborted] == [(DECIDED, 3)]
    assert first.last_stable_offset == first.high_watermark
    # The coordinator commits the transaction in partition 1 after the start.
    assert not second.aborted
    assert second.last_stable_offset == 0


def test_the_next_transaction_of_the_same_epoch_is_aborted(tmp_path: Path) -> None:
    asyncio.run(_restore_a_transaction_after_a_decided_one(tmp_path))


async def _restore_pending_offsets(folder: Path) -> None:
    cluster = SavedCluster(folder)
    # The logs of the groups are saved first. Each transaction that has pending offsets there may end before
    # the logs of the transaction coordinators are saved.
    await cluster.save_pending_offsets([STRAY, LATER, KNOWN, DECIDED])
    await cluster.save_transactions(
        {
            "later": _value(LATER, COMPLETE_COMMIT),
            "known": _value(KNOWN, ONGOING, [0], CONSUMER_OFFSETS_TOPIC),
            "decided": _value(DECIDED, PREPARE_COMMIT, [0], CONSUMER_OFFSETS_TOPIC),
        }
    )
    async with cluster.saving_partition(0):
        pass
    await cluster.restore()
    # After the start, the transaction coordinator commits the offsets of DECIDED. If the offsets of another
    # transaction stayed pending, the members of the group could never fetch their offset again.
    assert cluster.pending_offsets() == {DECIDED}


def test_pending_offsets_of_ended_transactions_are_aborted(tmp_path: Path) -> None:
    asyncio.run(_restore_pending_offsets(tmp_path))


def test_pending_offsets_of_an_aborted_transaction_are_not_committed_by_the_next_transaction(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        cluster = SavedCluster(tmp_path)
        # Both producers have pending offsets with epoch 0. The transaction of LATER was then aborted, and the
        # commit of its next transaction, with epoch 1, was decided before the save of the transaction log.
        await cluster.save_pending_offsets([LATER, DECIDED])
        await cluster.save_transactions(
            {
                name: replace(
                    _value(producer_id, PREPARE_COMMIT, [0], CONSUMER_OFFSETS_TOPIC),
                    producer_epoch=epoch_of_markers,
                    client_transaction_version=2,
                )
                for name, producer_id, epoch_of_markers in (("later", LATER, 2), ("decided", DECIDED, 1))
            }
        )
        async with cluster.saving_partition(0):
            pass
        await cluster.restore()
        assert cluster.pending_offsets() == {DECIDED}

    asyncio.run(scene())


@pytest.mark.parametrize(("end_of_segment", "start"), [(2, 5), (4, 3)])
def test_a_segment_with_records_of_an_aborted_transaction_does_not_belong_to_the_log(
    end_of_segment: int, start: int, tmp_path: Path
) -> None:
    async def scene() -> None:
        cluster = SavedCluster(tmp_path)
        await cluster.save_transactions({"known": _value(KNOWN, COMPLETE_COMMIT)})
        async with cluster.saving_partition(0) as partition:
            await partition.write(KNOWN, 0)
            await partition.commit(KNOWN, 0, decided_at=0)
            await partition.write(STRAY, 0)
        # The transaction of STRAY was committed after this save. Then its records were copied into a segment.
        await cluster.save_remote_segment(end_of_segment, epoch=0)
        await cluster.restore()
        (aborted,) = (await cluster.find(0)).aborted
        assert (aborted.producer_id, aborted.first_offset) == (STRAY, 3)
        assert cluster.generation_starts(0) == (start,)

    asyncio.run(scene())


async def _abort_none(*_: Any) -> set[int]:
    """Inserted defect: the restore does not end a transaction that exists only in diskless partitions."""
    return set()


def test_a_transaction_that_stays_open_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "abort_strays", _abort_none)
    with pytest.raises(AssertionError, match="last_stable_offset"):
        asyncio.run(_restore_open_transactions(tmp_path))
