"""The records of diskless topics leave the WAL on three nodes with one object store, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from moldau.diskless.upkeep.file_deletion import FileReclaimer
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.world.loop import SimulatedLoop, current_process
from moldau.tiered.consolidation import building, reconciler
from moldau.tiered.consolidation.plan import PlannedRange, PlannedSegment, plan_ranges
from moldau.tiered.consolidation.ports import LedPartition
from moldau.tiered.consolidation.reconciler import SegmentReconciler
from moldau.tiered.consolidation.steps import ConsolidationSteps
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.metadata.segments import TopicIdPartition
from moldau.tiered.removal.remover import RemotePartitionRemover

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(
    "name", ["consolidation-cluster", "consolidation-cluster-power", "consolidation-cluster-topics"]
)
def test_segments_have_all_records_that_left_the_wal(name: str) -> None:
    assert run_seed(SCENARIOS[name](), 0).violations == [], (
        f"python -m moldau.simulation --node {name} --seed 0"
    )


def test_each_byte_is_read_by_one_leader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing fails, no run of an object is read again, by the same leader or by another one. Between
    two runs, a request may contain a few bytes of other partitions."""
    runs: list[tuple[str, int, int]] = []
    leaders: set[str] = set()

    def noted(segments: Sequence[PlannedSegment]) -> list[PlannedRange]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        host = current_process(loop).host
        assert host is not None
        leaders.add(host.name)
        ranges = plan_ranges(segments)
        for each in ranges:
            runs.extend((each.object_key, each.start + run.start, run.size_bytes) for run in each.pieces)
        return ranges

    monkeypatch.setattr(building, "plan_ranges", noted)
    scenario = replace(SCENARIOS["consolidation-cluster"](), fault_count=0, records_per_producer=100)
    assert run_seed(scenario, 0).violations == []
    runs.sort()
    for (key, start, size_bytes), (next_key, next_start, _) in pairwise(runs):
        assert key != next_key or start + size_bytes <= next_start
    assert len(runs) > 50
    assert len(leaders) == 3
    shared = Counter(key for key, *_ in runs)
    assert max(shared.values()) > 1


def discarding_of_finished_segments(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a leader discards all segments of other leaders, even finished segments."""
    reconcile = SegmentReconciler.reconcile

    async def discarding(self: SegmentReconciler, led: LedPartition, own: Any) -> Any:
        status = await reconcile(self, led, own)
        others = [
            each
            for each in self.metadata.list_remote_log_segments(led.partition)
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and each.broker_id != self.events.broker_id
        ]
        return replace(status, needless=others)

    patch.setattr(SegmentReconciler, "reconcile", discarding)


def copies_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: no leader deletes the segments that another leader did not finish."""
    decide = reconciler.decide

    def lazy(*given: Any, **more: Any) -> ConsolidationSteps:
        return decide(*given, **more)._replace(discard=())

    patch.setattr(reconciler, "decide", lazy)


def deleted_topics_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the leader of the metadata partition deletes the segments of a deleted topic only if
    it has led a partition of this topic."""
    delete = RemotePartitionRemover._delete_partition

    async def partial(self: RemotePartitionRemover, partition: TopicIdPartition) -> None:
        if self._context.metadata.is_ready(partition):
            await delete(self, partition)

    patch.setattr(RemotePartitionRemover, "_delete_partition", partial)


def nothing_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: no coordinator hands its files over to other coordinators that still need them."""

    async def nothing(self: FileReclaimer, coordinator_id: int) -> int:
        return 0

    patch.setattr(FileReclaimer, "_hand_over", nothing)


SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the defect, unless a change of the code has changed the
histories."""


def test_the_checker_detects_files_that_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_handed_over(monkeypatch)
    scenario = replace(SCENARIOS["consolidation-cluster"](), step_limit=400_000)
    assert any(
        "has leaked: DescribedFile(" in each
        for seed in range(SEEDS_MAX)
        for each in run_seed(scenario, seed).violations
    )


@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (discarding_of_finished_segments, "consolidation-cluster"),
        (copies_that_are_left, "consolidation-cluster"),
        (deleted_topics_that_are_left, "consolidation-cluster-topics"),
    ],
)
def test_the_checker_detects_defects(
    mutant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    scenario = replace(SCENARIOS[name](), step_limit=400_000)
    assert any(run_seed(scenario, seed).violations for seed in range(SEEDS_MAX))
