"""Three nodes whose partitions get chunks, in virtual time. Each record exists once and in order, and the
replicas of a chunk are equal."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from moldau.replication.appending.freezing import AppendFreeze
from moldau.simulation.chunks.story import ChunkStory
from moldau.simulation.cluster import replication_stories
from moldau.simulation.nodes import SCENARIOS
from moldau.simulation.scenario import Result, run_seed
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.topic_partition import TopicPartition

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


def run_short(seed: int, name: str = "chunks", time_limit_s: float = 600.0) -> Result:
    scenario = SCENARIOS[name]()
    short = replace(scenario, records_per_producer=150, fault_count=3, time_limit_s=time_limit_s)
    return run_seed(short, seed)


@pytest.mark.parametrize(("name", "seed"), [("chunks", 0), ("chunks-power", 0)])
def test_each_record_is_read_once_and_in_order(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stories: list[ChunkStory] = []
    run = ChunkStory.run

    async def seen(self: ChunkStory) -> list[str]:
        stories.append(self)
        return await run(self)

    monkeypatch.setattr(ChunkStory, "run", seen)
    assert run_short(seed, name).violations == []
    assert stories[0].created > 0
    if name == "chunks":
        assert stories[0].sent > 0, "no consumer was sent to a broker of a chunk"


def test_a_topic_is_deleted_while_a_log_becomes_a_chunk() -> None:
    """In this history, the folder of the log is renamed after the deletion of the topic."""
    assert run_seed(SCENARIOS["chunks"](), 2).violations == []


def freeze_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Appends continue while the active chunk ends."""
    patch.setattr(AppendFreeze, "begin", lambda self: None)


def border_too_early(patch: pytest.MonkeyPatch) -> None:
    """The last record of a log does not become part of its chunk."""
    carve = ChunkStore.carve

    async def short(self: ChunkStore, name: TopicPartition, chunk: ChunkId, end_offset: int) -> None:
        await carve(self, name, chunk, end_offset - 1)

    patch.setattr(ChunkStore, "carve", short)


FLAWS = [(freeze_forgotten, 0), (border_too_early, 0)]
"""Each flaw with a seed that detects it soon."""


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_of_chunks_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    # The time is limited, because a story that cannot end would take long.
    monkeypatch.setattr(replication_stories, "CONVERGENCE_LIMIT_S", 10.0)
    assert run_short(seed, time_limit_s=60.0).violations
