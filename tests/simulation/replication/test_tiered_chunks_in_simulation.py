"""Three nodes with tiered partitions that have chunks, in virtual time. Each record exists once, and the
remote tier has no gap and no unneeded object."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.chunks.calls import ChunkSegment, SegmentCopy
from moldau.protocol.own.chunks.store_chunk_segment import NO_SEGMENT
from moldau.server.subsystems.chunks.tiering import ChunkSegmentStore, ChunkTiering
from moldau.simulation.chunks.tiered_story import TieredChunkStory
from moldau.simulation.cluster.stories import replication_stories
from moldau.simulation.scenario import Result, run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.tiered.tasks.context import TaskPartition

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


def run_short(name: str, seed: int, time_limit_s: float = 1_500.0) -> Result:
    scenario = replace(SCENARIOS[name](), records_per_producer=150, fault_count=3, time_limit_s=time_limit_s)
    return run_seed(scenario, seed)


def test_a_leader_goes_on_copying_after_the_broker_of_a_chunk_lost_power() -> None:
    # In this seed the broker loses power while it describes a segment of its chunk to the leader.
    assert run_seed(SCENARIOS["chunks-tiered-power"](), 300_006).violations == []


@pytest.mark.parametrize("name", ["chunks-tiered", "chunks-tiered-power"])
def test_each_record_is_read_once_from_the_tier_the_chunks_and_the_log(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories: list[TieredChunkStory] = []
    run = TieredChunkStory.run

    async def seen(self: TieredChunkStory) -> list[str]:
        stories.append(self)
        return await run(self)

    monkeypatch.setattr(TieredChunkStory, "run", seen)
    assert run_short(name, 0).violations == []
    assert stories[0].created > 0
    assert stories[0].emptied > 0, "no chunk was emptied by local retention"


def dropped_before_copied(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: local retention removes chunks that are not in the tier."""
    local_start = ChunkTiering.local_start

    def early(self: ChunkTiering, *arguments: Any) -> int:
        patch.setattr(ChunkTiering, "_copied_until", lambda self, name, log, chunk: chunk.end_offset + 1)
        try:
            return local_start(self, *arguments)
        finally:
            patch.setattr(ChunkTiering, "_copied_until", copied_until)

    copied_until = ChunkTiering._copied_until
    patch.setattr(ChunkTiering, "local_start", early)


def chunks_skipped(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the leader copies the segments of its log, but not the chunks."""
    copy = ChunkTiering.copy

    async def later(self: ChunkTiering, partition: TaskPartition) -> bool:
        await copy(self, partition)
        return True

    patch.setattr(ChunkTiering, "copy", later)
    patch.setattr(ChunkTiering, "_copy_one", _copy_nothing)


async def _copy_nothing(*_: Any) -> bool:
    return False


def recorded_but_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a broker describes a segment of its chunk, but never stores it."""
    store = ChunkSegmentStore.store_segment

    async def described(self: ChunkSegmentStore, topic: str, wanted: SegmentCopy) -> ChunkSegment:
        return await store(self, topic, wanted._replace(segment_id=NO_SEGMENT))

    patch.setattr(ChunkSegmentStore, "store_segment", described)


FLAWS = [(dropped_before_copied, 2), (chunks_skipped, 0), (recorded_but_not_stored, 0)]
"""Each flaw with a seed that detects it soon."""


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_of_tiered_chunks_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    # The time is limited, because a story that cannot end would take long.
    monkeypatch.setattr(replication_stories, "CONVERGENCE_LIMIT_S", 30.0)
    assert run_short("chunks-tiered", seed, time_limit_s=200.0).violations
