"""Diskless topics on three nodes with one object store, in virtual time. Each producer uses all brokers."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.cluster.internal_topics import InternalTopic
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.effects import answer
from moldau.coordinators.standby import StandbyShard
from moldau.replication.core.follower import FollowerReplica
from moldau.replication.core.leader import LeaderReplica
from moldau.replication.fetching.following import Following
from moldau.replication.fetching.snapshot_download import SnapshotDownload
from moldau.server.subsystems.topic_creation_subsystem import TopicsSubsystem
from moldau.server.topics.topic_creation import TopicCreator
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.storage.snapshots.snapshot_log import SnapshotLog

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(
    ("name", "seeds"),
    [("diskless-cluster", range(2)), ("diskless-cluster-power", range(2))],
)
def test_acknowledged_records_survive_in_their_order(name: str, seeds: range) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in seeds if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"
    # The coordinators moved between nodes, so the average number of terms per seed is above two. The states
    # of the coordinators were compared with their logs.
    assert scenario.coordinator_tally.terms > 2 * len(seeds)
    assert scenario.coordinator_tally.gaps == 0


@pytest.mark.parametrize("seed", [30013, 30036])
def test_a_batch_is_stored_once_although_its_first_response_was_lost(seed: int) -> None:
    """Seed 30013: after the coordinator has moved, a producer sends a batch again that is older than the last
    five batches. Seed 30036: at the end, a coordinator writes a snapshot while its objects are checked."""
    assert run_seed(SCENARIOS["diskless-cluster-power"](), seed).violations == []


def test_replicas_that_were_away_for_long_fetch_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    run = SnapshotDownload.run

    async def counted(self: SnapshotDownload, log: SnapshotLog) -> None:
        await run(self, log)
        fetched.append(log)

    monkeypatch.setattr(SnapshotDownload, "run", counted)
    assert run_seed(SCENARIOS["diskless-cluster-behind"](), 0).violations == []
    assert fetched


def fetch_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower's fetch acknowledges all records of its leader."""
    fetched: Callable[..., bool] = LeaderReplica.follower_fetched

    def generous(self: LeaderReplica, replica_id: int, fetch_offset: int, now_ms: int, **more: Any) -> bool:
        return fetched(self, replica_id, self.log_end_offset, now_ms, **more)

    patch.setattr(LeaderReplica, "follower_fetched", generous)


def unsynced_offset_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower never syncs, and acknowledges records that are only written."""
    patch.setattr(
        FollowerReplica, "acknowledged_offset", lambda self, log_end_offset, synced_offset: log_end_offset
    )
    begin = Following.__init__

    def unsynced(self: Following, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self._commit = None

    patch.setattr(Following, "__init__", unsynced)


def standby_one_record_short(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a follower's store lacks the last of several records that arrived together."""
    apply = StandbyShard._apply

    async def apply_most(self: Any, shard: Any, end_offset: int) -> None:
        store = self.store
        self.store = SimpleNamespace(
            committed=lambda records, to: store.committed(list(records)[: max(1, len(records) - 1)], to)
        )
        try:
            await apply(self, shard, end_offset)
        finally:
            self.store = store

    patch.setattr(StandbyShard, "_apply", apply_most)


def fewer_replicas_while_brokers_are_missing(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: an internal topic is created at once with one replica for each broker that is present,
    and keeps this number of replicas."""
    wanted = TopicCreator._internal_topic

    def clamped(self: Any, topic: InternalTopic) -> Any:
        count = sum(not broker.fenced for broker in self._view.image.brokers.values())
        configs = {**topic.configs, "min.insync.replicas": "1"}
        return wanted(self, replace(topic, replication_factor=max(1, count), configs=configs))

    patch.setattr(TopicCreator, "_internal_topic", clamped)
    patch.setattr(TopicsSubsystem, "_lacks_brokers_for", lambda self, topic: False)


def expired_without_a_record(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a leader uses its own clock to remove producers and files from its state. Only a
    replay may remove them."""

    def expire(shard: Any, token: Any, now_ms: int, cluster_ms: int) -> Any:
        shard.partitions.expire_producers(now_ms)
        shard.files.forget_before(now_ms)
        return answer(token, None)

    patch.setattr(DisklessShard, "expire", expire)


SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""
FLAWS = [
    (fetch_counts_for_all, "diskless-cluster", 13),
    (unsynced_offset_acknowledged, "diskless-cluster-power", 0),
    (standby_one_record_short, "diskless-cluster", 0),
    (fewer_replicas_while_brokers_are_missing, "diskless-cluster", 0),
    (expired_without_a_record, "diskless-cluster", 1),
]


@pytest.mark.parametrize(("flaw", "story", "seed"), FLAWS, ids=[flaw.__name__ for flaw, *_ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], story: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    scenario = replace(SCENARIOS[story](), time_limit_s=100.0)
    seeds = range(seed, seed + SEEDS_MAX)
    assert any(run_seed(scenario, each).violations for each in seeds)
