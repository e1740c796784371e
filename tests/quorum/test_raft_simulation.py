"""Hundreds of seeded histories of three to five replicas with faults. Invariants are checked after every
step."""

import os

import pytest
from raft_simulation import Cluster

from moldau.quorum.core.roles import Leader

SEEDS = int(os.environ.get("RAFT_SEEDS") or "150")
BLOCK = 50


def stir(cluster: Cluster) -> None:
    """Make one random change to the cluster."""
    chance = cluster.random
    node = chance.choice(list(cluster.nodes.values()))
    match chance.randrange(14):
        case 0 | 1:
            if node.is_up:
                cluster.crash(node)
        case 2 | 3 | 4:
            for other in cluster.nodes.values():
                if not other.is_up and chance.random() < 0.7:
                    cluster.start(other)
        case 5:
            cluster.cut = {frozenset((node.id, other)) for other in cluster.nodes if chance.random() < 0.7}
        case 6 | 7:
            cluster.cut = set()
        case 8:
            cluster.loss = chance.choice([0.0, 0.05, 0.3])
            cluster.delay_max_ms = chance.choice([1, 5, 60])
            cluster.sync_max_ms = chance.choice([2, 8, 150])
        case 9:
            cluster.snapshot(node)
        case 12:
            # Shortly after a write, most of the machines lose power.
            cluster.append()
            cluster.run_for(chance.choice([4, 12, 30]))
            for other in cluster.nodes.values():
                if other.is_up and chance.random() < 0.8:
                    cluster.crash(other)
            for other in cluster.nodes.values():
                if not other.is_up and chance.random() < 0.8:
                    cluster.start(other)
        case _:
            for _ in range(chance.randint(1, 8)):
                cluster.append()
    cluster.run_for(chance.choice([3, 10, 40, 150, 400]))


def heal(cluster: Cluster) -> None:
    cluster.cut, cluster.loss, cluster.delay_max_ms, cluster.sync_max_ms = set(), 0.0, 3, 5
    for node in cluster.nodes.values():
        if not node.is_up:
            cluster.start(node)
    cluster.run_for(2500)
    for _ in range(3):
        cluster.append()
    cluster.run_for(400)


def assert_converged(cluster: Cluster) -> None:
    leaders = [node.id for node in cluster.nodes.values() if isinstance(node.core.role, Leader)]
    epochs = {node.core.epoch for node in cluster.nodes.values()}
    assert len(leaders) == 1
    assert len(epochs) == 1
    histories = {tuple(node.applied) for node in cluster.nodes.values()}
    assert len(histories) == 1, "not all replicas have applied the same records"
    assert sum(entry.payload.startswith("r") for entry in histories.pop()) >= 3


def simulate(seed: int) -> Cluster:
    voters = (3, 4, 5)[seed % 3]
    cluster = Cluster(seed, voters, observers=seed % 2)
    cluster.run_for(400)
    for _ in range(25):
        stir(cluster)
    heal(cluster)
    assert_converged(cluster)
    return cluster


@pytest.mark.parametrize("first_seed", range(0, SEEDS, BLOCK))
def test_invariants_hold_in_every_history(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + BLOCK):
        try:
            simulate(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_late_leader_of_an_earlier_epoch_need_not_have_later_records() -> None:
    """In this history the last vote of epoch 2 arrives when the leader of epoch 3 has committed."""
    simulate(28070)


def test_one_seed_is_one_history() -> None:
    first, second = simulate(7), simulate(7)
    assert first.invariants.committed == second.invariants.committed
    assert first.steps == second.steps


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_quiet_cluster_elects_once_and_commits(voters: int) -> None:
    cluster = Cluster(1, voters, observers=1)
    cluster.run_for(600)
    cluster.append()
    cluster.run_for(2000)
    assert_epochs = {node.core.epoch for node in cluster.nodes.values()}
    assert len(assert_epochs) == 1
    assert len(cluster.invariants.leaders) <= 2
    assert all(len(node.applied) >= 2 for node in cluster.nodes.values())
