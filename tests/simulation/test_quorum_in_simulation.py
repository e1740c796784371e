"""Three controllers as whole nodes and brokers that observe them, in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.cluster.controller_service import ControllerService
from moldau.quorum import events as ev
from moldau.quorum.effect_runner import EffectRunner
from moldau.quorum.voters import VoterSet
from moldau.server.metadata_node import MetadataNode
from moldau.simulation.nodes import SCENARIOS
from moldau.simulation.scenario import run_seed

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS_PER_PART = 4
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["quorum", "quorum-power"])
def test_acknowledged_metadata_survives(name: str, part: int) -> None:
    scenario = SCENARIOS[name]()
    seeds = range(part * SEEDS_PER_PART, (part + 1) * SEEDS_PER_PART)
    failed = {seed: found for seed in seeds if (found := run_seed(scenario, seed).violations)}
    assert not failed, f"repeat with: python -m moldau.simulation --node {name} --seed {min(failed)}"


def test_a_quorum_repeats_its_history() -> None:
    scenario = SCENARIOS["quorum"]()
    assert run_seed(scenario, 3).digest == run_seed(scenario, 3).digest


def elect_by_a_minority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterSet, "majority", property(lambda self: len(self.ids) // 2))


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    flush: Callable[[Any], Any] = EffectRunner._flush

    async def early(self: Any) -> None:
        _, log, _, _, _ = self._driver.ports
        self._driver.submit(ev.LogFlushed(log.end_offset))
        await flush(self)

    patch.setattr(EffectRunner, "_flush", early)


def answer_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    handle: Callable[[Any, Any], Any] = ControllerService.handle

    async def early(self: Any, request: Any) -> Any:
        if not self.is_active:
            return await handle(self, request)
        response = self._decide(request)
        self._watch_sessions()
        return response

    patch.setattr(ControllerService, "handle", early)


def take_any_image_for_current(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Any) -> None:
        return None

    patch.setattr(MetadataNode, "until_current", at_once)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("quorum", elect_by_a_minority),
        ("quorum-power", acknowledge_before_the_sync),
        ("quorum", answer_before_the_commit),
        ("quorum", take_any_image_for_current),
    ],
)
def test_a_flaw_is_found(
    name: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    # Long enough for the flaws: a quorum with one goes on without end.
    scenario = replace(SCENARIOS[name](), time_limit_s=90.0)
    assert any(FLAWS & set(_words(run_seed(scenario, seed).violations)) for seed in range(200))


FLAWS = {"disagree", "led", "lost", "current"}
"""Words of the violations that tell of a flaw of safety; a story without progress tells of none."""


def _words(violations: list[str]) -> list[str]:
    return [word for violation in violations for word in violation.replace(":", " ").split()]
