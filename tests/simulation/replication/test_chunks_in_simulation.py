"""Three nodes whose partitions get chunks, in virtual time. Each record exists once and in order, and the
replicas of a chunk are equal."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from moldau.cluster.decisions.chunks import lookup, removal
from moldau.cluster.decisions.chunks.admission import original_replicas
from moldau.cluster.decisions.view import View
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.protocol.own.chunks.drop_chunks import DropChunksPartition
from moldau.protocol.partitions import TopicPartition
from moldau.protocol.records.metadata import ChunkChangeRecord
from moldau.replication.appending.freezing import AppendFreeze
from moldau.server.subsystems.chunks import upkeep
from moldau.server.subsystems.chunks.subsystem import ChunksSubsystem
from moldau.server.subsystems.chunks.upkeep import _PeerChunk
from moldau.simulation.chunks.story import ChunkStory
from moldau.simulation.cluster.stories import replication_stories
from moldau.simulation.scenario import Result, run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.folders.file_names import LOG_SUFFIX

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


def run_short(seed: int, name: str = "chunks", time_limit_s: float = 600.0) -> Result:
    scenario = SCENARIOS[name]()
    short = replace(scenario, records_per_producer=150, fault_count=3, time_limit_s=time_limit_s)
    return run_seed(short, seed)


@pytest.mark.parametrize(("name", "seed"), [("chunks", 3), ("chunks-power", 0)])
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
    """In the history of seed 2, the folder of the log is renamed to the chunk's folder after the deletion of
    the topic."""
    assert run_seed(SCENARIOS["chunks"](), 2).violations == []


def freeze_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: appends continue while the active chunk ends."""
    patch.setattr(AppendFreeze, "begin", lambda self: None)


def border_too_early(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the last record of a log does not become part of its chunk."""
    carve = ChunkStore.carve

    async def short(self: ChunkStore, name: TopicPartition, chunk: ChunkId, end_offset: int) -> None:
        await carve(self, name, chunk, end_offset - 1)

    patch.setattr(ChunkStore, "carve", short)


def copy_too_short(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the last bytes of a copied log are missing, and the copy is not checked."""
    read = _PeerChunk.read

    async def short(self: _PeerChunk, name: str, position: int) -> bytes:
        piece = await read(self, name, position)
        return piece[:-10] if name.endswith(LOG_SUFFIX) and position == 0 else b"" if position else piece

    patch.setattr(_PeerChunk, "read", short)
    patch.setattr(ChunkStore, "_check_copy", lambda *arguments: None)


def too_many_dropped(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: DeleteRecords removes a chunk whose last records are after the deleted records."""
    dropped = removal._dropped

    def more(view: View, sender_id: int, row: DropChunksPartition) -> list[ChunkChangeRecord]:
        return dropped(view, sender_id, replace(row, log_start_offset=row.log_start_offset + 20))

    patch.setattr(removal, "_dropped", more)
    patch.setattr(upkeep, "has_removable", lambda chunks, log_start_offset: True)


def moved_before_copied(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a move ends before the new brokers have the chunk."""

    def ended(chunk: ChunkRegistration) -> ChunkRegistration:
        if not chunk.is_moving:
            return chunk
        kept = original_replicas(chunk.replicas, chunk.removing_replicas)
        return replace(lookup.with_replicas(chunk, kept), adding_replicas=(), removing_replicas=())

    patch.setattr(lookup, "_with_ended_move", ended)


def chunk_not_deleted(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: brokers keep chunks that were moved away or deleted."""
    patch.setattr(ChunksSubsystem, "_drop", lambda *arguments: None)


FLAWS = [
    (freeze_forgotten, 11),
    (border_too_early, 0),
    (copy_too_short, 1),
    (too_many_dropped, 4),
    (moved_before_copied, 4),
    (chunk_not_deleted, 0),
]
"""Each flaw with a seed that detects it soon."""
SEEDS_MAX = 8
"""The number of seeds to try. The first seed finds the flaw, unless a change of the code has changed the
histories."""


@pytest.mark.parametrize(("flaw", "seed"), FLAWS, ids=[flaw.__name__ for flaw, _ in FLAWS])
def test_a_flaw_of_chunks_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    # The time is limited, because a story that cannot end would take long.
    monkeypatch.setattr(replication_stories, "CONVERGENCE_LIMIT_S", 10.0)
    assert any(run_short(seed + more, time_limit_s=60.0).violations for more in range(SEEDS_MAX))
