"""Every accepted request gets a response, and no part of a memory budget is lost, even if exceptions occur.
Mutants are detected."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.diskless.byte_budget import ByteBudget
from moldau.diskless.writing.own_commits import OwnCommits
from moldau.diskless.writing.producer_answers import FileFinisher
from moldau.diskless.writing.waiters import WaitingProducer
from moldau.diskless.writing.writer import DisklessWriter
from moldau.runtime import UnexpectedErrors
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS = 2


@pytest.mark.parametrize("name", ["diskless-defects", "diskless-defects-kills", "diskless-stop"])
def test_defects_affect_only_the_work_in_which_they_occur(name: str) -> None:
    scenario = SCENARIOS[name]()
    failed = {seed: found for seed in range(SEEDS) if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def forget_answers(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the batches of a lost object never get a response."""

    def resolve_nothing(files: Any, batches: Any, waiters: Any, payload_bytes: int, outcome: Any) -> None:
        waiters.stop()
        files._held.size_bytes -= payload_bytes

    patch.setattr(FileFinisher, "answer_lost", resolve_nothing)


def keep_bytes(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: the memory budget counts the bytes of a lost object forever."""

    def keep(files: Any, batches: Any, waiters: Any, payload_bytes: int, outcome: Any) -> None:
        waiters.stop()
        for batch in batches:
            batch.owner.resolve(outcome)

    patch.setattr(FileFinisher, "answer_lost", keep)


def keep_read_budget(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a failed read does not release its part of the memory budget."""
    give_back = ByteBudget._give_back

    def keep_a_byte(budget: ByteBudget, size_bytes: int) -> None:
        give_back(budget, size_bytes - 1)

    patch.setattr(ByteBudget, "_give_back", keep_a_byte)


def keep_promises(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: if the batches of files could not be written into the cache, the broker keeps these
    files in memory forever."""
    keep = OwnCommits._keep

    async def fail_and_wait(own: OwnCommits, runs: Any) -> None:
        try:
            await keep(own, runs)
        except Exception:
            runs.clear()
            raise

    patch.setattr(OwnCommits, "_keep", fail_and_wait)


def keep_bytes_of_first_lives(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: each of the first 40 releases of memory budgets leaves one byte in use. These releases
    are in the first runs of the node."""
    give_back = ByteBudget._give_back
    count = iter(range(10**9))

    def keep_early(budget: ByteBudget, size_bytes: int) -> None:
        give_back(budget, size_bytes - (next(count) < 40))

    patch.setattr(ByteBudget, "_give_back", keep_early)


def stop_at_once(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a node that stops does not finish pending produce requests."""

    async def leave(writer: DisklessWriter, grace_s: float = 0.0) -> None:
        writer._is_closing = True

    patch.setattr(DisklessWriter, "close", leave)


def say_nothing(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: unexpected errors are not reported. Apart from this, each error affects only the work
    in which it occurs."""
    patch.setattr(UnexpectedErrors, "report", lambda *_: None)


def lose_waiters(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: some committed batches get no response."""
    resolve = WaitingProducer.resolve
    counter = iter(range(10**9))

    def forgetful(waiter: WaitingProducer, outcome: Any) -> None:
        if next(counter) % 50 != 49:
            resolve(waiter, outcome)

    patch.setattr(WaitingProducer, "resolve", forgetful)


@pytest.mark.parametrize(
    ("mutate", "name", "seed"),
    [
        (forget_answers, "diskless-defects", 2),
        (keep_bytes, "diskless-defects", 1),
        (keep_read_budget, "diskless-defects-kills", 2),
        (keep_promises, "diskless-defects", 3),
        (keep_bytes_of_first_lives, "diskless-stop", 2),
        (stop_at_once, "diskless-stop", 3),
        (say_nothing, "diskless-defects", 2),
        (lose_waiters, "diskless-defects", 3),
    ],
)
def test_a_mutant_is_caught(mutate: Callable[[pytest.MonkeyPatch], None], name: str, seed: int) -> None:
    """``seed`` detects the mutant. If a change of the story has made this seed useless, one of twelve other
    seeds must detect the mutant."""

    def is_caught(seed: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            # The mutant is inserted again for each seed, because it may count the events of a single history.
            mutate(patch)
            return bool(run_seed(SCENARIOS[name](), seed).violations)

    assert any(map(is_caught, (seed, *range(12)))), f"{mutate.__doc__} is missed"
