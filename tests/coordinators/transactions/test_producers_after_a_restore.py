"""After a restore from the store, the coordinator refuses every producer id and epoch that a producer of the
old cluster had."""

import pathlib
from collections.abc import Iterable

import pytest
from transaction_model import Pair, TransactionModel

from moldau.backup.restore.revoked_commits import Decision
from moldau.backup.restore.transactions import DecidedCommit, fence_producers
from moldau.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from moldau.coordinators.transactions.codec import TransactionRecord
from moldau.coordinators.transactions.states import TransactionPhase
from moldau.coordinators.transactions.transaction import EPOCH_MAX
from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import iter_headers
from moldau.records.builder import build_batch
from moldau.records.record import Record, iter_records
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.snapshots.snapshot_log import SnapshotLog


def _log(folder: pathlib.Path, saved: Iterable[Pair]) -> SnapshotLog:
    log = SnapshotLog.open(Machine.real(), str(folder), TopicPartition(TRANSACTION_STATE_TOPIC, 0))
    log.initialize_epoch(1)
    for key, value in saved:
        log.append_as_leader(build_batch([Record(0, 0, key, value)]), 1)
    log.initialize_epoch(2)
    return log


def _pairs(log: SnapshotLog) -> list[Pair]:
    content = memoryview(b"".join(log.read(0, 1 << 24).views))
    return [
        (record.key, record.value)
        for position, header in iter_headers(content)
        if not header.is_control
        for record in iter_records(content[position : position + header.size_bytes])
    ]


def _restored(folder: pathlib.Path, model: TransactionModel) -> tuple[set[int], dict[int, DecidedCommit]]:
    """Restore the model from the records that its log has now."""
    log = _log(folder, model.log)
    fenced = fence_producers(log, 2, model.now_ms)
    model.log = _pairs(log)
    model.next_id += 1000
    log.close()
    model.restart()
    return fenced


@pytest.mark.parametrize("version", [0, 2])
def test_later_identities_of_the_old_cluster_are_not_given_again(
    tmp_path: pathlib.Path, version: int
) -> None:
    model = TransactionModel()
    names = ("quiet", "open", "decided")
    old = {name: (model.init(name).producer_id, 0) for name in names}
    for name in ("open", "decided"):
        model.add(name, old[name], [("t", 0)], version)
    model.end("decided", old["decided"], committed=True, version=version)
    decided_at = len(model.log) - 1
    aborted, committing = _restored(tmp_path, model)
    assert aborted == {old["open"][0]}
    assert committing == {
        old["decided"][0]: DecidedCommit(
            frozenset({("t", 0)}),
            1 if version else EPOCH_MAX,
            Decision(partition=0, offset=decided_at),
            decided_ms=model.now_ms,
        )
    }
    assert {name: each.identity for name, each in model.shard.by_id.items()} == {
        name: (old[name][0], EPOCH_MAX) for name in names
    }
    assert model.complete() == 2
    assert model.shard.by_id["open"].state is TransactionPhase.COMPLETE_ABORT
    assert model.shard.by_id["decided"].state is TransactionPhase.COMPLETE_COMMIT
    for name in names:
        # Both epochs are refused, because the old cluster may have fenced the producer after the save. A
        # producer that was fenced in this way has the epoch after the saved epoch.
        for epoch in (0, 1):
            with pytest.raises(KafkaError) as refused:
                model.add(name, (old[name][0], epoch), [("t", 0)], version)
            assert refused.value.code is ErrorCode.producer_fenced
        answer = model.init(name)
        assert answer.producer_id not in {each[0] for each in old.values()}
        assert answer.producer_epoch == 0


def test_a_restored_coordinator_does_not_assign_the_next_id_of_a_producer_again(
    tmp_path: pathlib.Path,
) -> None:
    model = TransactionModel()
    first = model.init("a")
    value = model.shard.by_id["a"]._replace(producer_epoch=EPOCH_MAX - 1)
    model.put(TransactionRecord("a", value))
    last = (first.producer_id, EPOCH_MAX - 1)
    model.add("a", last, [("t", 0)], version=2)
    following = model.end("a", last, committed=True, version=2)
    _restored(tmp_path, model)
    assert model.complete() == 1
    assert model.init("a").producer_id > following.producer_id


def test_batches_of_the_next_transaction_are_not_committed_with_the_decided_one() -> None:
    decided = DecidedCommit(frozenset({("t", 0)}), next_epoch=3)
    assert decided.includes("t", 0, 2)
    assert not decided.includes("t", 0, 3), "the markers of the decided transaction have this epoch"
    assert not decided.includes("t", 1, 2), "the transaction has no such partition"
