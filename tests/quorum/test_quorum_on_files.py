"""The driver on the log of ``moldau.storage``: files, restarts, and a fast start."""

import asyncio
from pathlib import Path

from voter_ids import voters_of

from moldau.protocol.metadata_topic import CLUSTER_METADATA_FOLDER, CLUSTER_METADATA_TOPIC
from moldau.protocol.partitions import TopicPartition
from moldau.quorum.core.voters import ReplicaKey
from moldau.quorum.driver import QuorumDriver, QuorumIdentity
from moldau.quorum.state_store import QuorumStateStore
from moldau.quorum.subscriptions import Committed
from moldau.records.batch import parse_header
from moldau.records.record import iter_records
from moldau.runtime import Machine
from moldau.storage.snapshots.replicated_log import SnapshotReader
from moldau.storage.snapshots.snapshot_log import SnapshotLog


class Values:
    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.leaders: list[tuple[int | None, int]] = []

    def on_commit(self, committed: Committed) -> None:
        for view in committed.batches:
            position = 0
            while position < len(view):
                header = parse_header(view, position)
                batch = view[position : position + header.size_bytes]
                if not header.is_control:
                    self.values += [record.value for record in iter_records(batch)]
                position += header.size_bytes

    def on_snapshot(self, reader: SnapshotReader) -> None:
        self.values = [
            record.value for batch in list(reader.batches())[1:-1] for record in iter_records(batch)
        ]

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))


def test_records_survive_a_restart_with_a_snapshot_between(tmp_path: Path) -> None:
    async def work() -> None:
        machine, voters = Machine.real(), voters_of(1)
        folder = str(tmp_path / CLUSTER_METADATA_FOLDER)
        expected: list[bytes | None] = []
        for life in range(1, 4):
            log = SnapshotLog.open(machine, folder, TopicPartition(CLUSTER_METADATA_TOPIC, 0))
            listener = Values()
            store = QuorumStateStore(machine.disk, folder, voters)
            driver = QuorumDriver(
                machine, log, identity=QuorumIdentity(ReplicaKey(1), voters), state_store=store
            )
            driver.add_listener(listener)
            await driver.start()
            assert driver.is_leader
            values = [b"%d-%d" % (life, number) for number in range(3)]
            await driver.append(values)
            expected += values
            assert listener.values == expected
            assert listener.leaders == [(1, life)]
            writer = driver.create_snapshot(driver.high_watermark, driver.epoch, machine.clock.now_ms())
            assert writer is not None
            writer.append([value or b"" for value in expected])
            await writer.freeze()
            await driver.snapshot_created()
            await driver.stop()
            log.close()
        machine.workers.close()

    asyncio.run(work())
