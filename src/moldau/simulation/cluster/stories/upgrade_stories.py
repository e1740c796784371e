"""A rolling upgrade to the next version and back, while clients write and read.

In the next version, two features have one more level than in this version (:data:`NEXT_FEATURES`). Nodes of
both versions work together. After each upgrade of a node, an administrator tries to raise a level. This
succeeds only after the last node was upgraded. After that, a node of this version does not start until the
level is lowered. In half of the stories the administrator raises ``metadata.version``, whose level cannot be
lowered.
"""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from moldau.cluster.decisions.features import METADATA_VERSION_LATEST, METADATA_VERSION_MIN, UpgradeType
from moldau.cluster.decisions.kinds.diskless import DISKLESS_FEATURE, DISKLESS_LATEST
from moldau.cluster.image.image import METADATA_VERSION_FEATURE
from moldau.cluster.image.registrations import FeatureRanges
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.server.settings import SUPPORTED_FEATURES
from moldau.simulation.clients.client import SimulatedClient
from moldau.simulation.cluster.stories.replication_stories import NODE_IDS, ReplicationStory, replication
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World

NEXT_FEATURES: Final[FeatureRanges] = MappingProxyType(
    {
        **SUPPORTED_FEATURES,
        # The next level of metadata.version is 30. Broker records have other versions at this level.
        METADATA_VERSION_FEATURE: (METADATA_VERSION_MIN, METADATA_VERSION_LATEST + 1),
        DISKLESS_FEATURE: (0, DISKLESS_LATEST + 1),
    }
)
"""The range of levels of each feature that a node of the next version supports."""

CONTROLLER_IDS: Final = (101, 102, 103)
UPDATE_FEATURES_VERSION: Final = 2
LEVEL_LIMIT_S: Final = 90.0
REFUSAL_LIMIT_S: Final = 60.0
_SNAPSHOTS: Final = {
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "metadata.max.retention.bytes": "1",
}
"""With these configs, a node also starts from snapshots that the other version has written."""


def upgrade_separate() -> Scenario:
    """Three brokers and three controllers. Brokers and controllers are upgraded in any order."""
    return replace(upgrade(), story=partial(UpgradeStory, controller_ids=CONTROLLER_IDS))


def upgrade() -> Scenario:
    """Combined nodes that are stopped or killed, and start with another version."""
    weather = Weather((Fault.KILL, Fault.PAUSE, Fault.CUT, Fault.ONE_WAY), pause_s_max=3.0, between_s_max=2.0)
    return replace(
        replication(),
        story=UpgradeStory,
        weather=weather,
        producer_count=2,
        plain_producer_count=1,
        consumer_count=1,
        records_per_producer=600,
    )


class UpgradeStory(ReplicationStory):
    """A seeded story of an upgrade."""

    def __init__(self, world: World, scenario: Scenario, **roles: Any) -> None:
        super().__init__(world, scenario, properties=dict(_SNAPSHOTS), **roles)
        self._upgraded: set[int] = set()
        """Nodes that run the next version now, or will run it after their next start."""
        self._admin: SimulatedClient = self._begin_at_any(SimulatedClient, "operator")

    def _features_of(self, node_id: int) -> FeatureRanges:
        return NEXT_FEATURES if node_id in self._upgraded else SUPPORTED_FEATURES

    async def _storm(self, nemesis: Nemesis) -> None:
        await self._on("operator", self._operate(nemesis, stream(self._world.seed, "upgrade")))

    async def _operate(self, nemesis: Nemesis, chance: random.Random) -> None:
        for node_id in chance.sample(self.node_ids, len(self.node_ids)):
            await self._replace(nemesis, chance, node_id)
            await nemesis.storm(1)
            if len(self._upgraded) < len(self.node_ids):
                await self._expect_refusal({DISKLESS_FEATURE: 2, METADATA_VERSION_FEATURE: 30})
            if self.history.violations:
                return  # If a level is raised too early, the other nodes stop after each start.
        await self._set({DISKLESS_FEATURE: 2}, UpgradeType.UPGRADE)
        if chance.random() < 0.5:
            await self._set({METADATA_VERSION_FEATURE: 30}, UpgradeType.UPGRADE)
            answer = await self._ask({METADATA_VERSION_FEATURE: 29}, UpgradeType.SAFE_DOWNGRADE)
            if answer is not None and answer.error_code is ErrorCode.none:
                self.history.violate("metadata.version is lowered, though its records stay in the log")
            return
        await self._start_too_old(nemesis, chance.choice(self.node_ids))
        await nemesis.storm(1)
        await self._set({DISKLESS_FEATURE: chance.choice((0, 1))}, UpgradeType.SAFE_DOWNGRADE)
        for node_id in chance.sample(self.node_ids, len(self.node_ids)):
            await self._replace(nemesis, chance, node_id)

    async def _replace(self, nemesis: Nemesis, chance: random.Random, node_id: int) -> None:
        """Start a node with the other version. Wait first until all replicas are in sync."""
        await self._converge()
        host = self._host(node_id)
        is_upgrade = node_id not in self._upgraded
        self.history.note(f"{host.name} gets the {'next' if is_upgrade else 'former'} version")
        is_killed = chance.random() < 0.3
        if is_killed:
            self._upgraded ^= {node_id}
            await nemesis.restart(host, chance.uniform(0.1, 3.0))
            return
        await nemesis.stop(host)
        self._upgraded ^= {node_id}
        await asyncio.sleep(chance.uniform(0.1, 3.0))
        nemesis.start(host)

    async def _start_too_old(self, nemesis: Nemesis, node_id: int) -> None:
        """Start a node with a version that does not support a level of the cluster. The node must stop and
        report the reason."""
        await self._converge()
        host = self._host(node_id)
        self.history.note(f"{host.name} is too old")
        await nemesis.stop(host)
        self._upgraded.remove(node_id)
        reasons: list[str] = []

        async def attempt(machine: Machine) -> None:
            try:
                await self._node(node_id, machine)
            except KafkaError as error:
                reasons.append(str(error))
            except RuntimeError as error:  # the node started and served requests
                if node_id in NODE_IDS:
                    self.history.violate(
                        f"{host.name} has served with a level that it does not know: {error}"
                    )
                # A controller begins to serve clients before it has fetched the records that are missing in
                # its log.
                reasons.append(str(error))

        main = host.start(attempt).main
        assert main is not None
        await asyncio.wait((main,), timeout=REFUSAL_LIMIT_S)
        if not any(DISKLESS_FEATURE in reason for reason in reasons):
            self.history.violate(f"{host.name} does not end with the level that it does not know: {reasons}")
        host.kill()
        self._upgraded.add(node_id)
        nemesis.start(host)

    async def _expect_refusal(self, levels: Mapping[str, int]) -> None:
        for name, level in levels.items():
            answer = await self._ask({name: level}, UpgradeType.UPGRADE)
            if answer is not None and answer.error_code is ErrorCode.none:
                old = sorted(set(self.node_ids) - self._upgraded)
                self.history.violate(f"{name} is raised to {level}, though nodes {old} do not know it")

    async def _set(self, levels: Mapping[str, int], kind: UpgradeType) -> None:
        """Repeat a change until it succeeds. This is needed because nodes register some time after their
        start."""
        deadline = self._world.loop.elapsed_s() + LEVEL_LIMIT_S
        while True:
            answer = await self._ask(levels, kind)
            if answer is not None and answer.error_code is ErrorCode.none:
                self.history.note(f"levels are {dict(levels)}")
                return
            if self._world.loop.elapsed_s() > deadline:
                self.history.violate(f"the levels {dict(levels)} are not accepted: {answer}")
                return
            await asyncio.sleep(0.5)

    async def _ask(self, levels: Mapping[str, int], kind: UpgradeType) -> Any:
        """The response to UpdateFeatures; None when no response arrives."""
        updates = [
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ]
        request = UpdateFeaturesRequest(timeout_ms=5_000, feature_updates=updates)
        try:
            return await self._admin.ask(ApiKey.UPDATE_FEATURES, UPDATE_FEATURES_VERSION, request)
        except OSError:
            return None

    def _host(self, node_id: int) -> Host:
        return self._world.host(f"node-{node_id}")
