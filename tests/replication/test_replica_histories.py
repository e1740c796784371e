"""Random histories of whole groups of replicas. No fault of the network or the disks causes the loss of a
committed record.

Messages are lost, repeated and reordered. Programs are killed, and machines lose power. Under the WRITTEN
policy an acknowledged record may be unsynced, so there are fewer faults. One in-sync replica always keeps its
power. The controller detects a loss of power before other failures.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from replica_group import Group

from moldau.replication.core import leader as leader_module
from moldau.replication.core.follower import FollowerReplica
from moldau.replication.core.leader import LeaderReplica, ProposalFailure
from moldau.replication.core.policy import FSYNCED, WRITTEN
from moldau.replication.core.replica import Replica

POLICIES = {"written": (WRITTEN, 1), "fsynced": (FSYNCED, 2)}
STEPS = 400


class History:
    """The history of one seed."""

    def __init__(self, seed: int, policy: str) -> None:
        self.chance = random.Random(f"{policy}-{seed}")
        self.group = Group(3, *POLICIES[policy])
        self.fsynced = policy == "fsynced"
        self.kills = self.chance.choice([0.01, 0.04])
        self.moves = self.chance.choice([0.02, 0.06, 0.12])
        self.deliveries = self.chance.choice([0.4, 0.6, 0.75])
        self.order = self.chance.choice([0.1, 0.5, 0.9])
        self.losses = self.chance.choice([0.05, 0.2])

    def run(self) -> None:
        group = self.group
        for id in group.nodes:
            group.start(id)
        for _ in range(STEPS):
            self.step()
            group.check()
        group.heal()
        group.check()

    def step(self) -> None:
        group, chance = self.group, self.chance
        group.now_ms += chance.randrange(30)
        if group.network and chance.random() < self.deliveries:
            self._deliver_one()
            return
        node = chance.choice(list(group.nodes.values()))
        dice = chance.random()
        if not node.is_up:
            if dice < 0.6 and not self.fsynced:
                for other in sorted(group.without_power - {node.id}):
                    group.notice(other)
            if dice < 0.3:
                group.start(node.id)
            elif dice < 0.6:
                group.notice(node.id)
        elif dice < self.kills:
            power = self._may_lose_power(node.id) and chance.random() < 0.7
            group.kill(node.id, power=power)
            if power and not self.fsynced:
                group.drop_proposals(node.id)
        elif dice < self.kills + self.moves:
            group.move(node.id)
        elif dice < 0.3:
            group.sync(node.id)
        elif node.follower is not None:
            group.fetch(node.id)
        elif node.leader is not None and dice < 0.6:
            group.produce(node.id)
        elif node.leader is not None and dice < 0.65:
            group.give_up(node.id)
        elif node.leader is not None:
            group.propose(node.id)

    def _may_lose_power(self, id: int) -> bool:
        return self.fsynced or bool(self.group.controller.in_sync - self.group.without_power - {id})

    def _deliver_one(self) -> None:
        network, chance = self.group.network, self.chance
        index = 0 if chance.random() < self.order else chance.randrange(len(network))
        dice = chance.random()
        message = network[index] if dice < 0.1 else network.pop(index)
        if dice < 1 - self.losses:
            self.group.deliver(message)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_histories_keep_what_is_committed(first: int, policy: str) -> None:
    for seed in range(first, first + 50):
        try:
            History(seed, policy).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {policy}: {error}") from error


def test_histories_commit_records_and_change_leaders() -> None:
    """The histories contain commits and changes of leaders."""
    committed = terms = 0
    for seed in range(20):
        history = History(seed, "fsynced")
        history.run()
        committed += len(history.group.committed)
        terms += history.group.controller.leader_epoch
    assert committed > 200
    assert terms > 100


# -- mutants ------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _watermark_one_too_far(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica.advance

    def advance(self: LeaderReplica) -> bool:
        moved = right(self)
        if moved and self.high_watermark < self.log_end_offset:
            self.high_watermark += 1
        return moved

    patch.setattr(LeaderReplica, "advance", advance)


def _watermark_ignores_the_proposal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "maximal_in_sync", property(lambda self: self.in_sync))


def _watermark_ignores_a_follower(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica._bounds_changed

    def bounds_changed(self: LeaderReplica) -> None:
        right(self)
        self._bounding = self._bounding[:1]

    patch.setattr(LeaderReplica, "_bounds_changed", bounds_changed)


def _written_counts_as_synced(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica.local_append

    def local_append(self: LeaderReplica, log_end_offset: int) -> bool:
        moved = right(self, log_end_offset)
        self.acknowledged_offset = log_end_offset
        return self.advance() or moved

    patch.setattr(LeaderReplica, "local_append", local_append)


def _follower_acknowledges_unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerReplica, "acknowledged_offset", lambda self, end, synced: end)


def _truncation_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FollowerReplica, "truncation", lambda self, history, end, epoch, end_offset: end)


def _divergence_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("replica_group.diverging_epoch", lambda *arguments: None)


def _broker_epoch_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "is_stale_fetch", lambda self, replica, epoch: False)
    patch.setattr(leader_module, "UNKNOWN_EPOCH", 1 << 40)
    patch.setattr(
        LeaderReplica, "_may_join", lambda self, replica: self._is_long_enough(self.followers[replica])
    )
    patch.setattr(
        LeaderReplica, "_member", lambda self, replica, epoch: leader_module.InSyncMember(replica, -1)
    )


def _unknown_outcome_is_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica.proposal_failed

    def proposal_failed(self: LeaderReplica, proposal: Any, failure: ProposalFailure) -> bool:
        return right(self, proposal, ProposalFailure.NOT_ATTEMPTED)

    patch.setattr(LeaderReplica, "proposal_failed", proposal_failed)


def _short_logs_join(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "_is_long_enough", lambda self, progress: progress.acknowledged_offset >= 0)


def _start_of_the_term_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        LeaderReplica,
        "_is_long_enough",
        lambda self, progress: progress.acknowledged_offset >= self.high_watermark,
    )


def _older_epochs_lead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "_may_move", lambda self, target, epoch: True)


def _older_sets_are_taken(patch: pytest.MonkeyPatch) -> None:
    right = LeaderReplica.set_changed

    def set_changed(
        self: LeaderReplica, in_sync: Any, partition_epoch: int = -1, replicas: Any = None
    ) -> bool:
        return right(self, in_sync, max(partition_epoch, self.partition_epoch), replicas)

    patch.setattr(LeaderReplica, "set_changed", set_changed)


def _epochs_without_records_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    right = FollowerReplica.position

    def position(self: FollowerReplica, history: Any, end: int) -> Any:
        found = right(self, history, end)
        return found._replace(last_fetched_epoch=max(found.last_fetched_epoch, self.leader_epoch - 1))

    patch.setattr(FollowerReplica, "position", position)


def _too_few_in_sync_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReplica, "has_enough_in_sync", property(lambda self: True))


MUTANTS: dict[str, tuple[str, Patch]] = {
    patch.__name__.strip("_"): (policy, patch)
    for policy, patch in [
        ("written", _watermark_one_too_far),
        ("fsynced", _watermark_one_too_far),
        ("written", _watermark_ignores_the_proposal),
        ("written", _watermark_ignores_a_follower),
        ("fsynced", _written_counts_as_synced),
        ("fsynced", _follower_acknowledges_unsynced),
        ("written", _truncation_forgotten),
        ("written", _divergence_unchecked),
        ("written", _broker_epoch_unchecked),
        ("written", _unknown_outcome_is_taken_for_none),
        ("written", _short_logs_join),
        ("fsynced", _start_of_the_term_ignored),
        ("written", _older_epochs_lead),
        ("written", _older_sets_are_taken),
        ("written", _epochs_without_records_are_asked_for),
        ("fsynced", _too_few_in_sync_commit),
    ]
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_within_200_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, patch = MUTANTS[name]
    patch(monkeypatch)
    for seed in range(200):
        try:
            History(seed, policy).run()
        except (AssertionError, ValueError):
            return
    pytest.fail("no history showed it")
