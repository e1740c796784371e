"""Seeded histories of a quorum whose voters change (KIP-853), with faults. The tests check Raft's invariants
and the invariants of voters."""

import os
from collections.abc import Callable

import pytest
from raft_simulation import Cluster
from test_raft_simulation import stir

from moldau.quorum.core import messages as msg
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Leader
from moldau.quorum.core.roles.reconfiguration import Reconfiguration
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet

SEEDS = int(os.environ.get("RAFT_SEEDS") or "40")
BLOCK = 20
NODES = 5


def change(cluster: Cluster) -> None:
    """Request a change of the voters. Many requests are refused."""
    chance = cluster.random
    node = chance.choice(list(cluster.nodes.values()))
    if chance.random() < 0.5:
        cluster.change_voters(msg.AddVoterRequest(voter=Voter(node.key), timeout_ms=300))
    else:
        cluster.change_voters(msg.RemoveVoterRequest(key=node.key, timeout_ms=300))


def replace_disk(cluster: Cluster) -> None:
    """Give a node an empty disk, so that its vote is lost. A voter gets an empty disk only if there are no
    other faults and at least three voters. Otherwise the other voters could not continue."""
    node = cluster.random.choice(list(cluster.nodes.values()))
    is_voter = node.key in named_voters(cluster)
    if is_voter:
        calm(cluster, 1500)
        if any(len(voters_of(other)) < 3 for other in cluster.nodes.values()):
            return
        is_voter = node.key in named_voters(cluster)
    if node.is_up:
        cluster.crash(node)
    cluster.new_disk(node, auto_join=is_voter or cluster.random.random() < 0.5)
    if is_voter:
        calm(cluster, 2500)


def named_voters(cluster: Cluster) -> set[ReplicaKey]:
    """All voters that occur in any of the logs."""
    return {voter.key for node in cluster.nodes.values() for voter in voters_of(node)}


def calm(cluster: Cluster, duration_ms: int) -> None:
    """Stop all faults, start all stopped nodes, and let the cluster run for a while."""
    cluster.cut, cluster.loss, cluster.delay_max_ms, cluster.sync_max_ms = set(), 0.0, 3, 5
    for node in cluster.nodes.values():
        if not node.is_up:
            cluster.start(node)
    cluster.run_for(duration_ms)


def voters_of(node: object) -> VoterSet:
    logged = node.log.voters  # type: ignore[attr-defined]
    return logged.voters if logged is not None else VoterSet([])


def simulate(seed: int) -> Cluster:
    voters = (3, 1, 4)[seed % 3]
    cluster = Cluster(seed, voters, observers=NODES - voters, dynamic=True)
    cluster.run_for(600)
    for _ in range(30):
        match cluster.random.randrange(6):
            case 0 | 1:
                change(cluster)
                cluster.run_for(cluster.random.choice([3, 30, 200]))
            case 2:
                replace_disk(cluster)
            case _:
                stir(cluster)
    heal(cluster)
    return cluster


def heal(cluster: Cluster) -> None:
    """Check that all nodes have the same voters, and that the cluster can still commit records."""
    calm(cluster, 3000)
    for _ in range(3):
        cluster.append()
    cluster.run_for(500)
    leaders = [node for node in cluster.nodes.values() if isinstance(node.core.role, Leader)]
    assert len(leaders) == 1
    assert leaders[0].core.is_voter
    assert len({voters_of(node) for node in cluster.nodes.values()}) == 1, "nodes count other voters"
    assert len({tuple(node.applied) for node in cluster.nodes.values()}) == 1, "not all have the same records"
    assert len({node.core.epoch for node in cluster.nodes.values()}) == 1


@pytest.mark.parametrize("first_seed", range(0, SEEDS, BLOCK))
def test_invariants_hold_while_voters_change(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + BLOCK):
        try:
            simulate(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_histories_change_voters_and_refuse_to() -> None:
    outcomes: dict[str, int] = {}
    for seed in range(4):
        for name, count in simulate(seed).outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    assert outcomes["none"] >= 4
    assert {"request_timed_out", "duplicate_voter", "voter_not_found"} <= set(outcomes)


def count_changes_that_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconfiguration, "_obstacle", lambda self: None)


def ignore_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaKey, "is_same_replica", lambda self, other: self.id == other.id)
    patch.setattr(VoterSet, "has", lambda self, key: key.id in self)


def count_voters_when_committed(patch: pytest.MonkeyPatch) -> None:
    def follow(core: RaftCore) -> None:
        logged = core.log.voters
        if logged is not None and logged.offset < core.commit_offset:
            core.voters = logged.voters
            core.role.on_voters_changed()

    patch.setattr(RaftCore, "_follow_voters", follow)


def stand_only_as_a_voter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "may_stand", RaftCore.is_voter)


@pytest.mark.parametrize(
    ("mutate", "seed"),
    [
        (count_changes_that_overlap, 0),
        (ignore_directories, 0),
        (count_voters_when_committed, 0),
        (stand_only_as_a_voter, 23),
    ],
)
def test_a_flaw_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        simulate(seed)
