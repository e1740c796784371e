"""A node loses all disks. It has remote segments, and topics that are in no saved state.

The guarantees of a restore are checked:

* Every finished segment of the saved state can be read. Its objects are deleted only after a state without
  the segment was saved.
* The records of a classic topic that were remote in the saved state are at their offsets.
* The objects of topics that are not in the saved state are listed, and no scan deletes them.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.backup.restore.remote_segments import RemoteSegments
from moldau.backup.restore.saved_state import pieces_of
from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.objects.storage import ObjectNotFoundError, ObjectStorage
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.clients.client import Producer, Sending
from moldau.simulation.history import Outcome
from moldau.simulation.restore.story import PROPERTIES, WORK_LIMIT_S, RestoreStory
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.object_storage import open_simulated
from moldau.simulation.world.world import World
from moldau.tiered.storage.storage_manager import RemoteStorageError, RemoteStorageManager

CLASSIC: Final = TopicPartition("past", 0)
EXPIRING: Final = TopicPartition("expiring", 0)
CONFIGS: Final = {
    CLASSIC: {
        "diskless.enable": "false",
        "remote.storage.enable": "true",
        "segment.ms": "400",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    },
    EXPIRING: {"retention.bytes": "4000"},
}
ROUNDS: Final = 2
RECORDS_A_ROUND: Final = 250
SCANS_S = 230.0
"""Time after which unknown objects are old enough for the orphan scan."""


class TierStory(RestoreStory):
    """Rounds of three steps, with topics in the remote tier: work, loss of all disks, restore."""

    properties: Mapping[str, str] = MappingProxyType(
        {
            **PROPERTIES,
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "700",
        }
    )

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__(world, scenario)
        self._interval_s = 6.0
        self._partitions = list(CONFIGS)
        self._expected: dict[int, bytes] = {}
        """The records of the classic topic that a restore must bring back, by offset."""
        self._noted = 0
        """Number of productions in the history that were already considered for ``_expected``."""
        self._unknown: set[str] = set()

    async def run(self) -> list[str]:
        self._node.start(self._program)
        for partition, configs in CONFIGS.items():
            await self._create(partition, configs)
        await asyncio.sleep(2 * self._interval_s)
        producers = [self._plain(partition) for partition in self._partitions]
        for number in range(ROUNDS):
            sent = (number + 1) * RECORDS_A_ROUND
            for each in producers:
                each.disconnect()  # the process of the previous round has ended
            work = [self._on(f"{each.name} {number}", each.run(sent, pause_s=0.2)) for each in producers]
            await asyncio.sleep(self._chance.uniform(12.0, 20.0))
            # Most of these topics are not in a saved state yet.
            late = TopicPartition(f"late-{number}", 0)
            await self._create(late, {})
            await self._on(late.topic, self._plain(late).run(20, pause_s=0.05))
            await self._vanish(number)
            _, pending = await asyncio.wait(work, timeout=WORK_LIMIT_S)
            if pending:
                self.history.violate("producers cannot go on after the restore")
            if self.history.violations:
                break
            self._check_remote(dict((await self._contents(f"after {number}"))[CLASSIC].records))
        if self.history.violations:
            return self.history.violations
        await asyncio.sleep(SCANS_S)
        checking = self._world.host("operator").start(self._check_unknown).main
        assert checking is not None
        await checking
        return self.history.violations

    async def _create(self, partition: TopicPartition, configs: dict[str, str]) -> None:
        name = f"admin of {partition.topic}"
        await self._on(name, self._client(name).create_topic(partition.topic, 1, configs))

    def _plain(self, partition: TopicPartition) -> Producer:
        name = f"producer of {partition.topic}"
        chance = stream(self._world.seed, name)
        # Local records are lost. An idempotent producer could therefore not continue.
        sending = Sending(idempotent=False)
        return Producer(name, self._bootstrap, self.history, chance, partition, sending)

    async def _restored(self, storage: ObjectStorage, tier: RemoteStorageManager) -> None:
        """Check that the finished segments of the saved state can be read."""
        assert self._report is not None
        segments = RemoteSegments()
        for saved in self._report.cut.logs.values():
            if saved.topic == REMOTE_LOG_METADATA_TOPIC:
                await segments.add(pieces_of(storage, saved))
        for segment in segments.all_finished():
            try:
                await tier.fetch_log_segment(segment, 0, 1)
            except RemoteStorageError as error:
                self.history.violate(f"{segment.id} of the saved state is not readable: {error}")
        remote_end = max(self._report.remote_ends.values(), default=0)
        if not remote_end:
            self.history.violate("the saved state has no remote records of the classic topic")
        self._expected = {offset: value for offset, value in self._expected.items() if offset < remote_end}
        self._unknown.update(self._report.newer.kept)
        self.history.note(f"{remote_end} remote records, {len(self._unknown)} objects of unknown topics")

    async def _vanish(self, number: int) -> None:
        for production in self.history.productions[self._noted :]:
            if production.partition == CLASSIC and production.outcome is Outcome.OK:
                self._expected.update(enumerate(production.values, production.base_offset))
        self._noted = len(self.history.productions)
        await super()._vanish(number)

    def _check_remote(self, records: dict[int, bytes]) -> None:
        """Check the records of the classic topic that were acknowledged and were remote in the saved
        state."""
        for offset, value in self._expected.items():
            if records.get(offset) != value:
                self.history.violate(f"offset {offset} had {value!r}, and has {records.get(offset)!r}")

    async def _check_unknown(self, machine: Machine) -> None:
        storage = open_simulated("", {}, machine)
        for key in sorted(self._unknown):
            try:
                await storage.fetch(key, 0, 1)
            except ObjectNotFoundError:
                self.history.violate(f"{key} with records of an unknown topic was deleted")


def restored_tiers() -> Scenario:
    """A node with remote segments loses all disks."""
    return Scenario(story=TierStory, time_limit_s=4_000.0, step_limit=4_000_000, cpu_limit_s=300.0)
