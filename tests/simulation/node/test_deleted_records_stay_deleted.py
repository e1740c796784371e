"""When DeleteRecords of a classic partition was acknowledged, the deletion survives a kill and a loss of
power."""

import asyncio
from uuid import UUID

import pytest

from created_logs import get_or_create
from moldau.metrics import Meters
from moldau.metrics.broker_topics import BrokerTopicMeters
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.context import ReplicaContext
from moldau.replication.waiters import WaitingRoom
from moldau.runtime import Machine
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.seeds import stream
from moldau.simulation.world.process import serving
from moldau.simulation.world.world import World
from moldau.storage.cleaner.cleaner import CleanerSettings
from moldau.storage.critical_logs.recovery_report import RepairKind
from moldau.storage.log.config import LogConfig
from moldau.storage.log.partition_log import PartitionLog
from moldau.storage.log_manager import LogManager
from moldau.storage.log_manager_settings import LogManagerSettings

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

NAMES = [TopicPartition("t", number) for number in range(3)]
TOPIC_ID = UUID(int=7)
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=200, retention_ms=-1)
LOCAL_ID = 1


def lead(machine: Machine, manager: LogManager, name: TopicPartition) -> ClassicPartition:
    log = manager.use(name, CONFIG)
    partition = ClassicPartition(
        ReplicaContext(
            machine, LOCAL_ID, WaitingRoom(), BrokerTopicMeters(Meters("kafka.server", "KafkaServer"))
        ),
        PartitionKey(TOPIC_ID, name.partition),
        log,
        min_in_sync=1,
        high_watermark=log.high_watermark,
    )
    epoch = 1 + (log.leader_epochs.latest_epoch or 0)
    partition.become_leader(epoch, (LOCAL_ID,), (LOCAL_ID,))
    return partition


def append(partition: ClassicPartition, count: int) -> None:
    batch = build_batch([Record(0, 0, None, b"v" * 20, ())] * count)
    partition.append(memoryview(batch), required_acks=1, timeout_ms=1000)


class Life:
    """Several nodes that run one after another on the same disk, and the log start offsets that were
    acknowledged to clients."""

    def __init__(self, seed: int) -> None:
        self._chance = stream(seed, "what")
        self.told = dict.fromkeys(NAMES, 0)
        self.asked = dict.fromkeys(NAMES, 0)
        self.deletions = 0

    async def program(self, machine: Machine) -> None:
        machine.disk.make_dirs("/data")
        machine.disk.sync_dir("/")
        settings = LogManagerSettings(cleaner=CleanerSettings(enable=False))
        manager = LogManager(machine, ["/data"], settings)
        await manager.start(lambda _: CONFIG)
        for name in NAMES:
            log = await get_or_create(manager, name, CONFIG, TOPIC_ID)
            assert self.told[name] <= log.log_start_offset <= self.asked[name], name
        assert all(each.kind is RepairKind.TORN_TAIL for each in manager.report.repairs)
        serving()
        await asyncio.gather(*(self._use(lead(machine, manager, name)) for name in NAMES))

    async def _use(self, partition: ClassicPartition) -> None:
        name, chance = partition.log.topic_partition, self._chance
        while True:
            append(partition, chance.randint(1, 30))
            if chance.random() < 0.5:
                await partition.log.flush()
            start, end = partition.log.log_start_offset, partition.log.log_end_offset
            self.asked[name] = chance.randint(start, end)
            self.told[name] = await partition.delete_records(self.asked[name])
            assert self.told[name] == self.asked[name]
            self.deletions += 1
            await asyncio.sleep(chance.uniform(0, 0.05))


@pytest.mark.parametrize("power_lost", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("seed", range(15))
def test_deleted_records_stay_deleted(seed: int, *, power_lost: bool) -> None:
    life = Life(seed)
    when = stream(seed, "when")

    async def story(world: World) -> None:
        host = world.host("node")
        for _ in range(4):
            process = host.start(life.program)
            assert process.main is not None
            await asyncio.wait([process.main], timeout=when.uniform(0.1, 60 * host.disk_delay_s))
            if process.main.done():
                process.main.result()
            host.lose_power() if power_lost else host.kill()

    with World(seed) as world:
        world.run(story(world))
        assert world.errors() == []
    assert life.deletions


@pytest.mark.parametrize("seed", range(3))
def test_deletions_in_a_story_outlive_kills_and_losses_of_power(seed: int) -> None:
    assert not run_seed(SCENARIOS["node-deletes"](), seed).violations


def test_the_story_finds_a_start_that_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(log: PartitionLog) -> None:
        """Inserted defect: the log start moves only in memory."""

    monkeypatch.setattr(PartitionLog, "persist_start", forget)
    found = run_seed(SCENARIOS["node-deletes"](), 0).violations
    assert any("was acknowledged as its start" in line for line in found)
