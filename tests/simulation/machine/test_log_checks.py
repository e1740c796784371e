"""The checker detects wrong histories. Simulations that use the checker detect the flaws that a test
inserts."""

import asyncio
from dataclasses import replace

import pytest

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import Machine
from moldau.simulation.checks.log_checks import check
from moldau.simulation.history import History, Observation, Outcome, Production
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import tiny
from moldau.simulation.stories.tiny_node import Flaw

pytestmark = pytest.mark.usefixtures("quiet_nodes")

PARTITION = TopicPartition("t", 0)
LOG = [(0, b"a0"), (1, b"a1"), (2, b"b0")]


def history() -> History:
    found = History(lambda: 0.0)
    for producer, first, values, offset in (("a", 0, (b"a0", b"a1"), 0), ("b", 0, (b"b0",), 2)):
        production = Production(producer, PARTITION, first, values, idempotent=True)
        found.invoke(production)
        found.end(production, Outcome.OK, offset)
    for offset, value in LOG:
        found.observe(Observation("c", PARTITION, offset, value))
    return found


def test_a_sound_history_passes() -> None:
    assert check(history(), {PARTITION: LOG}) == []


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([(0, b"a0"), (1, b"a1")], "lost"),
        ([*LOG, (3, b"b0")], "doubled"),
        ([(0, b"a0"), (1, b"a1"), (3, b"b0")], "not dense"),
        ([(0, b"a1"), (1, b"a0"), (2, b"b0")], "stands behind"),
        ([*LOG, (3, b"ghost")], "no producer sent"),
        ([(0, b"b0"), (1, b"a0"), (2, b"a1")], "was acknowledged at"),
    ],
)
def test_a_wrong_log_is_found(log: list[tuple[int, bytes]], words: str) -> None:
    assert any(words in violation for violation in check(history(), {PARTITION: log}))


def test_a_refused_record_in_a_log_is_found() -> None:
    found = history()
    found.productions[1].outcome = Outcome.FAILED
    assert any("was refused" in violation for violation in check(found, {PARTITION: LOG}))


def test_deleted_records_that_come_back_are_found() -> None:
    found = history()
    found.deleted(PARTITION, 2)
    assert check(found, {PARTITION: LOG[2:]}, {PARTITION: 2}) == []
    back = check(found, {PARTITION: LOG[1:]}, {PARTITION: 1})
    assert back == ["t-0: begins at 1, and 2 was acknowledged as its start"]


def test_a_batch_of_unknown_outcome_may_exist_or_not() -> None:
    found = history()
    found.productions[1].outcome = Outcome.UNKNOWN
    found.observations.pop()
    assert check(found, {PARTITION: LOG}) == []
    assert check(found, {PARTITION: LOG[:2]}) == []


def test_a_consumer_that_moves_back_or_reads_an_unknown_record_is_found() -> None:
    found = history()
    found.observe(Observation("c", PARTITION, 1, b"a1"))
    assert any("was next" in violation for violation in check(found, {PARTITION: LOG}))
    found = history()
    found.observe(Observation("c", PARTITION, 3, b"gone"))
    assert any("in the end" in violation for violation in check(found, {PARTITION: LOG}))


@pytest.mark.simulation
def test_the_sound_node_passes() -> None:
    failed = {seed: result.violations for seed in range(25) if (result := run_seed(tiny(), seed)).violations}
    assert not failed


@pytest.mark.simulation
@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE])
def test_a_planted_flaw_is_found(flaw: Flaw) -> None:
    assert any(run_seed(tiny(flaw), seed).violations for seed in range(60))


async def turns_for_ever(machine: Machine) -> None:
    while True:
        machine.clock.now_ms()
        await asyncio.sleep(0)


async def never_returns(machine: Machine) -> None:
    while True:
        try:
            while True:
                machine.clock.now_ms()
        except Exception:
            continue


async def waits_for_ever(machine: Machine) -> None:
    while True:
        machine.clock.now_ms()
        await asyncio.sleep(1)


def test_a_story_without_an_end_is_a_failure_that_names_the_place() -> None:
    scenario = replace(tiny(), step_limit=20_000, time_limit_s=50.0, cpu_limit_s=20.0)
    (turning,) = run_seed(replace(scenario, program=turns_for_ever), 1).violations
    assert turning.startswith("LimitError: no end after 20001 steps")
    (waiting,) = run_seed(replace(scenario, program=waits_for_ever), 1).violations
    assert waiting.startswith("LimitError: no end after")
    assert "50.0" in waiting
    (stuck,) = run_seed(replace(scenario, program=never_returns, cpu_limit_s=0.3), 1).violations
    assert stuck.startswith("StuckError: no end after 0.3 s of processor time, at ")
    assert "never_returns:" in stuck
