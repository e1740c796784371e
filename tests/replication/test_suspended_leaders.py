"""A leader is closed for the exchange of its log, and opened again in the same epoch."""

import asyncio
import pathlib

from replica_files import Replicas

from moldau.replication.core.leader import ProposalFailure
from moldau.server.subsystems.partitions.classic_kind import ClassicKind

EPOCH, PARTITION_EPOCH = 3, 4


def test_a_leader_is_not_suspended_while_the_outcome_of_its_proposal_is_unknown(
    tmp_path: pathlib.Path,
) -> None:
    """The controller may still commit the proposal. The leader that is opened again would not know it, so its
    high watermark could pass the new member of the in-sync set."""
    pair = Replicas(tmp_path, min_in_sync=1)
    pair.lead(1, EPOCH, (1,))
    led, kind = pair.partitions[1], ClassicKind.__new__(ClassicKind)
    leader = led._replica.leader
    assert leader is not None
    leader.brokers_changed({1: 7, 2: 8})
    pair.produce(1, b"a")
    asyncio.run(pair.fetch(2))
    asyncio.run(pair.fetch(2))
    assert kind.may_suspend(led)
    proposal = led.leading.propose(10_000, 7)
    assert proposal is not None
    assert proposal.in_sync == {1, 2}
    assert not kind.may_suspend(led)
    led.leading.failed(proposal, ProposalFailure.UNKNOWN)
    assert not kind.may_suspend(led)
    led.leading.committed(EPOCH, (1, 2), PARTITION_EPOCH)
    assert kind.may_suspend(led)
    assert kind.may_suspend(pair.partitions[2])
