"""Golden scripts of whole groups: the messages of three to five cores, and the table of their states."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_script import check_script, play
from raft_group import Group

from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Follower, Leader, Voted
from moldau.quorum.core.voters import VoterSet
from moldau.quorum.settings import RaftSettings

GROUPS = Path(__file__).parent / "golden_groups"
NAMES = sorted(path.stem for path in GROUPS.glob("*.txt"))


@pytest.mark.parametrize("name", NAMES)
def test_group_script(name: str) -> None:
    check_script(GROUPS / f"{name}.txt", Group().run)


def vote_for_everyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Voted, "grants_vote", lambda *_args, **_options: True)


def follow_without_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "truncate_to_divergence", lambda *_args: False)


def elect_by_a_minority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterSet, "majority", property(lambda self: len(self.ids) // 2))


def lead_without_check_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftSettings, "check_quorum_timeout_ms", property(lambda self: 10**9))


def stand_without_a_pre_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "become_prospective", RaftCore.become_candidate)


def ignore_a_resignation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "on_leader_resigned", lambda *_args: None)


def count_copies_that_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Follower, "_must_wait_for_the_disk", lambda self: self._log_is_changing)


def serve_records_that_are_cut_away(patch: pytest.MonkeyPatch) -> None:
    compare: Callable[[Any, OffsetAndEpoch], Any] = Leader._compare_logs

    def without_snapshot(self: Any, theirs: OffsetAndEpoch) -> Any:
        answer = compare(self, theirs)
        return None if answer is not None and answer.snapshot_id else answer

    patch.setattr(Leader, "_compare_logs", without_snapshot)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("lost_power", vote_for_everyone),
        ("divergence", follow_without_truncation),
        ("check_quorum", elect_by_a_minority),
        ("check_quorum", lead_without_check_quorum),
        ("pre_vote", stand_without_a_pre_vote),
        ("resign", ignore_a_resignation),
        ("unsynced", count_copies_that_are_not_synced),
        ("snapshot", serve_records_that_are_cut_away),
    ],
)
def test_a_flaw_changes_its_script(
    name: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (GROUPS / f"{name}.txt").read_text()
    mutate(monkeypatch)
    try:
        actual = play(text, Group().run)
    # The inserted defect may also raise an error, because it violates the group's checks.
    except Exception as error:
        actual = repr(error)
    assert actual != text
