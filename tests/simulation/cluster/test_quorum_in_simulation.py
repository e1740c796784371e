"""Three controllers, and brokers that observe the quorum. They are whole nodes in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from moldau.cluster import snapshot_schedule
from moldau.cluster.controller.controller import Controller
from moldau.cluster.controller.service import ControllerService
from moldau.cluster.image.image_records import to_records
from moldau.protocol.records.metadata import ConfigRecord
from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Leader
from moldau.quorum.core.voters import VoterSet
from moldau.quorum.driver import QuorumDriver
from moldau.quorum.effects.log_writer import LogWriter
from moldau.quorum.state_store import QuorumStateStore
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.simulation.scenario import run_seed
from moldau.simulation.scenario_table import SCENARIOS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("quiet_nodes")]

SEEDS_PER_PART = 3
PARTS = 2
FLAW_SEEDS = 40


STORIES = [(name, part) for name in ("quorum", "quorum-power") for part in range(PARTS)]
STORIES += [(name, 0) for name in ("quorum-votes", "quorum-votes-power", "quorum-links", "quorum-clock")]


@pytest.mark.parametrize(("name", "part"), STORIES)
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
    flush: Callable[[Any], Any] = LogWriter._flush

    async def early(self: Any) -> None:
        self._events.submit(ev.LogFlushed(self._log.end_offset))
        await flush(self)

    patch.setattr(LogWriter, "_flush", early)


def answer_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    handle: Callable[..., Any] = ControllerService.handle

    async def early(self: Any, request: Any, caller: Any = None, deadline: float | None = None) -> Any:
        if not self.is_active:
            return await handle(self, request, caller, deadline)
        async with self._deciding:
            response = await self._decide(request, caller)
        self._watch_sessions()
        return response

    patch.setattr(ControllerService, "handle", early)


def take_any_image_for_current(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Any) -> None:
        return None

    patch.setattr(MetadataNode, "until_current", at_once)


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    write: Callable[[Any, ElectionState], None] = QuorumStateStore.write
    patch.setattr(QuorumStateStore, "write", lambda self, state: write(self, replace(state, voted=None)))


def answer_before_a_vote_is_stored(patch: pytest.MonkeyPatch) -> None:
    carry_out: Callable[[Any, Any], Any] = QuorumDriver._carry_out

    async def early(self: Any, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, fx.PersistElectionState):
                self._events.spawn(self._machine.workers.run(self._state_store.write, effect.state))
        rest = [effect for effect in effects if not isinstance(effect, fx.PersistElectionState)]
        await carry_out(self, rest)

    patch.setattr(QuorumDriver, "_carry_out", early)


def answer_with_the_start_before_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    known = Leader.high_watermark
    patch.setattr(Leader, "high_watermark", property(lambda self: known.__get__(self) or 0))


def take_any_watermark(patch: pytest.MonkeyPatch) -> None:
    def commit_at_once(self: Any, offset: int) -> None:
        self.commit_offset = offset
        self.emit(fx.CommitAdvanced(offset))

    patch.setattr(RaftCore, "commit_up_to", commit_at_once)


def follow_behind_any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_compare_logs", lambda *_args: None)


def forget_configs_in_snapshots(patch: pytest.MonkeyPatch) -> None:

    def some(image: Any) -> Any:
        return (record for record in to_records(image) if not isinstance(record, ConfigRecord))

    patch.setattr(snapshot_schedule, "to_records", some)


def decide_on_what_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    replay: Callable[[Any, Any], None] = Controller.replay

    def partly(self: Any, records: Any) -> None:
        replay(self, [record for record in records if not isinstance(record, ConfigRecord)])

    patch.setattr(Controller, "replay", partly)


@pytest.mark.parametrize(
    ("name", "mutate", "words", "seed"),
    [
        ("quorum", elect_by_a_minority, {"led", "disagree", "lost"}, 2),
        ("quorum-links", elect_by_a_minority, {"led", "disagree", "lost"}, 2),
        ("quorum-power", acknowledge_before_the_sync, {"led", "disagree", "lost"}, 2),
        ("quorum", answer_before_the_commit, {"lost"}, 8),
        ("quorum", take_any_image_for_current, {"current"}, 2),
        ("quorum-votes", forget_votes, {"led", "leaders"}, 1),
        ("quorum-votes-power", forget_votes, {"led", "leaders"}, 10),
        ("quorum-votes-power", answer_before_a_vote_is_stored, {"led", "leaders"}, 12),
        ("quorum", answer_with_the_start_before_the_first_commit, {"watermark"}, 0),
        ("quorum", take_any_watermark, {"watermark"}, 0),
        ("quorum-power", follow_behind_any_log, {"logs disagree"}, 2),
        ("quorum", forget_configs_in_snapshots, {"states at"}, 0),
        ("quorum", decide_on_what_is_not_logged, {"decides on"}, 1),
    ],
)
def test_a_flaw_is_found(
    name: str,
    mutate: Callable[[pytest.MonkeyPatch], None],
    words: set[str],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flaw must cause violations that contain ``words``. If a story makes no progress, the flaw does not
    count as detected.

    The test first runs ``seed``, in which the story detects the flaw. If the story has changed, so that this
    seed does not detect the flaw any more, the test runs the seeds from 0 on.
    """
    mutate(monkeypatch)
    # The time is limited, because a defective quorum never stops. While logs differ, each virtual second
    # takes long.
    time_limit_s = 45.0 if mutate is follow_behind_any_log else 90.0
    scenario = replace(SCENARIOS[name](), time_limit_s=time_limit_s)
    assert any(_tells(run_seed(scenario, seed).violations, words) for seed in (seed, *range(FLAW_SEEDS)))


def _tells(violations: list[str], words: set[str]) -> bool:
    return any(word in violation for violation in violations for word in words)
