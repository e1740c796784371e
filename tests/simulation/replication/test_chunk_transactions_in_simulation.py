"""Three nodes whose partitions get chunks during transactions, in virtual time.

With MUTANT_SEEDS=N, every mutant runs with the seeds from 0 up to N until one seed finds it.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from moldau.chunks.calls import ChunkRecords
from moldau.chunks.reading import ChunkedPart
from moldau.replication.partition_interface import AbortedTransaction
from moldau.server.subsystems.chunks import creation
from moldau.simulation.chunks.transaction_story import TransactionalChunkStory
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS
from moldau.simulation.transactions.record import Fate
from moldau.storage.producers.producer_snapshot import encode_producer_snapshot
from moldau.storage.producers.producer_state import ProducerState

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

STORY = "chunks-transactions"
SEEDS = int(os.environ.get("MUTANT_SEEDS", "0"))


def test_a_late_batch_that_may_be_stored_needs_another_sequence() -> None:
    # In this seed the leader stores a late batch, and stops leading before it can acknowledge the batch.
    assert run_seed(SCENARIOS[STORY](), 300_030).violations == []


def test_transactions_over_chunks_are_read_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stories: list[TransactionalChunkStory] = []
    over_borders = 0
    run, aborted = TransactionalChunkStory.run, ChunkedPart._aborted

    async def seen(self: TransactionalChunkStory) -> list[str]:
        stories.append(self)
        return await run(self)

    async def counted(
        self: ChunkedPart, chunks: Any, read_from: Any, found: ChunkRecords, offset: int
    ) -> list[AbortedTransaction]:
        nonlocal over_borders
        all_aborted = await aborted(self, chunks, read_from, found, offset)
        over_borders += len(all_aborted) > len(found.aborted)
        return all_aborted

    monkeypatch.setattr(TransactionalChunkStory, "run", seen)
    monkeypatch.setattr(ChunkedPart, "_aborted", counted)
    found = run_seed(SCENARIOS[STORY](), 0)
    assert not found.violations, f"repeat with: python -m moldau.simulation --node {STORY}"
    assert sum(line.endswith(f"is {Fate.COMMITTED.value}") for line in found.history.notes) > 12
    assert over_borders > 0, "no aborted transaction ended in a later chunk"


def forget_later_markers(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a read of a chunk lists only the transactions whose markers are in this chunk."""

    async def in_chunk(
        self: ChunkedPart, chunks: Any, read_from: Any, found: ChunkRecords, offset: int
    ) -> list[AbortedTransaction]:
        return list(found.aborted)

    patch.setattr(ChunkedPart, "_aborted", in_chunk)


def forget_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the state at a border has no producers."""
    nobody = encode_producer_snapshot(ProducerState(expiration_ms=1))
    patch.setattr(creation, "encode_producer_snapshot", lambda state: nobody)


Mutant = Callable[[pytest.MonkeyPatch], None]
PINNED: dict[Mutant, int] = {forget_later_markers: 1, forget_open_transactions: 0}
"""Each mutant with a seed that finds it."""


@pytest.mark.parametrize("mutate", PINNED, ids=lambda each: each.__name__)
def test_a_mutant_of_transactions_over_chunks_is_caught(mutate: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(SEEDS) if SEEDS else [PINNED[mutate]]:
            if found := run_seed(SCENARIOS[STORY](), seed).violations:
                print(f"seed {seed} finds it: {found[0]}")
                return
    pytest.fail(f"{mutate.__doc__} is missed")
