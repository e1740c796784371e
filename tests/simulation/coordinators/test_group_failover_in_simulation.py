"""Group coordinators move between nodes. Each leader epoch begins with the state that the earlier records of
the log produce."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.coordinators.loader import ShardLoader
from moldau.coordinators.shard_host import HostState, ShardHost
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]


@pytest.mark.parametrize(
    "name", ["replication-groups", "replication-groups-power", "replication-groups-moves"]
)
def test_a_new_leader_has_the_state_that_its_predecessors_log_implies(name: str) -> None:
    scenario = SCENARIOS[name]()
    assert not run_seed(scenario, 0).violations, f"python -m moldau.simulation --node {name} --seed 0"
    tally = scenario.coordinator_tally
    assert tally.terms > 3, "hardly any coordinator has moved"
    assert tally.states > 2 * tally.terms
    assert tally.generations
    assert not tally.gaps


def state_of_an_earlier_term(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: when a node becomes the leader of a coordinator again, it begins with the old state,
    from the end of its previous leadership."""
    kept: dict[tuple[Any, str], tuple[Any, int]] = {}
    stop, load, run = ShardHost.stop, ShardHost._load_once, ShardLoader.run
    resumed: dict[Any, int] = {}

    def keep(host: Any) -> None:
        if host.state is HostState.ACTIVE:
            kept[host._unexpected, host.name] = (host.shard, host.end_offset)
        stop(host)

    async def resume(host: Any) -> None:
        found = kept.pop((host._unexpected, host.name), None)
        if found is not None:
            shard, resumed[found[0]] = found
            host.kind = replace(host.kind, new_shard=lambda _: shard)
        await load(host)

    async def run_on(loader: Any, offset: int, after_chunk: Any = None) -> int:
        return await run(loader, resumed.pop(loader._shard, offset), after_chunk)

    patch.setattr(ShardHost, "stop", keep)
    patch.setattr(ShardHost, "_load_once", resume)
    patch.setattr(ShardLoader, "run", run_on)


def answer_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Inserted defect: a coordinator responds as soon as its leader has written the records, and does not
    wait for other replicas."""

    def answer(_host: Any, future: Any, response: Any) -> None:
        if not future.done():
            future.set_result(response)

    patch.setattr(ShardHost, "_answer", answer)


FLAWS: list[tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = [
    (state_of_an_earlier_term, 11, "from its log: "),
    (answer_before_the_commit, 8, "was acknowledged"),
]


@pytest.mark.parametrize(("flaw", "seed", "words"), FLAWS, ids=[flaw.__name__ for flaw, *_ in FLAWS])
def test_a_flaw_is_caught(
    flaw: Callable[[pytest.MonkeyPatch], None], seed: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw(monkeypatch)
    found = run_seed(SCENARIOS["replication-groups"](), seed).violations
    assert any(words in text for text in found)
