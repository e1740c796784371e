"""The controller's response may be lost or late. Even then, the watermark must never be higher than the end
of the log of a member of the in-sync set."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.metrics import Meters
from moldau.metrics.replication import InSyncMeters
from moldau.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.leader import LeaderAndIsr, LeaderReplica, ReplicaOffsets
from moldau.replication.in_sync_requests import InSyncSets
from moldau.replication.leading import Leading
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.simulation.world.world import World

LEADER, FOLLOWER = 1, 2
METERS = InSyncMeters(Meters("kafka.server", "KafkaServer"))
KEY = PartitionKey(UUID(int=7), 0)
Answer = Callable[[AlterPartitionRequest], AlterPartitionResponse]


def committed(request: AlterPartitionRequest) -> AlterPartitionResponse:
    """The response of a controller that has applied the request."""
    (topic,) = request.topics
    (row,) = topic.partitions
    return partition_answer(
        ErrorCode.none,
        isr=tuple(state.broker_id for state in row.new_isr_with_epochs),
        partition_epoch=row.partition_epoch + 1,
    )


def refused(code: ErrorCode) -> Answer:
    """The controller refuses the change of this partition."""
    return lambda request: partition_answer(code)


def refused_whole(code: ErrorCode) -> Answer:
    """The controller refuses the whole request."""
    return lambda request: AlterPartitionResponse(error_code=code)


def lost(request: AlterPartitionRequest) -> AlterPartitionResponse:
    """It is unknown whether the controller has applied the request."""
    raise KafkaError(ErrorCode.request_timed_out)


def partition_answer(code: ErrorCode, **values: Any) -> AlterPartitionResponse:
    row = AlterPartitionResponsePartitionData(
        partition_index=0, error_code=code, leader_id=LEADER, leader_epoch=3, **values
    )
    return AlterPartitionResponse(
        topics=[AlterPartitionResponseTopicData(topic_id=KEY.topic_id, partitions=[row])]
    )


class Controller:
    """Responds to one request after another in the way that the test chooses, and records the requests."""

    def __init__(self, leader: LeaderReplica, answers: Sequence[Answer], fences_at: int | None) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self._leader = leader
        self._answers = list(answers)
        self._fences_at = fences_at

    async def send(self, request: AlterPartitionRequest, *_: Any, **__: Any) -> AlterPartitionResponse:
        self.requests.append(request)
        if len(self.requests) == self._fences_at:
            self._leader.brokers_changed({LEADER: 100})
        if not self._answers:
            await asyncio.Event().wait()
        return self._answers.pop(0)(request)


def leader_with_an_outsider() -> LeaderReplica:
    """A leader that is the only in-sync replica. Its follower is active and has all ten records."""
    leader = LeaderReplica(
        LEADER,
        LeaderAndIsr(3, [LEADER, FOLLOWER], [LEADER], partition_epoch=5),
        ReplicaOffsets(10, 10),
        now_ms=0,
    )
    leader.brokers_changed({LEADER: 100, FOLLOWER: 200})
    leader.follower_fetched(FOLLOWER, 10, 0, broker_epoch=200)
    return leader


def ask(
    *answers: Answer, for_s: float = 1.0, fences_at: int | None = None
) -> tuple[LeaderReplica, Controller]:
    """Request changes of one partition's in-sync set for a while.

    ``fences_at`` is the number of a request. The follower is fenced before the response to this request.
    """
    leader = leader_with_an_outsider()
    controller = Controller(leader, answers, fences_at)

    async def program() -> None:
        replica: Any = SimpleNamespace(leader=leader)
        leading = Leading(replica, None, lambda: 0, lambda: None)
        partition: Any = SimpleNamespace(key=KEY, topic="t", leading=leading)
        channel: Any = controller
        sets = InSyncSets(LEADER, channel, lambda: 100, 30_000, UnexpectedErrors(), METERS)
        sets.lead(partition)
        sets.start()
        sets.consider(partition)
        await asyncio.sleep(for_s)
        await sets.stop()

    World(0).run(program())
    return leader, controller


def test_a_follower_that_caught_up_joins() -> None:
    leader, controller = ask(committed)
    assert leader.in_sync == {LEADER, FOLLOWER}
    assert leader.pending is None
    assert len(controller.requests) == 1


@pytest.mark.parametrize(
    "unclear",
    [
        lost,
        refused_whole(ErrorCode.stale_broker_epoch),
        refused_whole(ErrorCode.broker_id_not_registered),
        refused_whole(ErrorCode.not_controller),
        refused(ErrorCode.not_controller),
    ],
)
def test_a_change_of_unknown_outcome_bounds_the_watermark(unclear: Answer) -> None:
    leader, _ = ask(lost, unclear, fences_at=2)
    leader.local_append(20)
    assert leader.maximal_in_sync == {LEADER, FOLLOWER}
    assert leader.high_watermark == 10


def test_a_change_of_unknown_outcome_is_sent_again_until_it_is_known() -> None:
    leader, controller = ask(lost, refused_whole(ErrorCode.stale_broker_epoch), lost, committed)
    assert leader.in_sync == {LEADER, FOLLOWER}
    assert len(controller.requests) == 4


def test_a_refused_change_limits_nothing_and_is_decided_again() -> None:
    leader, controller = ask(refused(ErrorCode.ineligible_replica), committed)
    assert leader.in_sync == {LEADER, FOLLOWER}
    assert len(controller.requests) == 2


@pytest.mark.parametrize("code", [ErrorCode.invalid_update_version, ErrorCode.new_leader_elected])
def test_a_leader_with_older_metadata_than_the_controller_waits_for_newer_metadata(code: ErrorCode) -> None:
    leader, controller = ask(refused(code), for_s=5)
    assert len(controller.requests) == 1
    assert leader.maximal_in_sync == {LEADER, FOLLOWER}
    leader.set_changed([LEADER, FOLLOWER], 6)
    assert leader.pending is None


@pytest.mark.parametrize("is_known", [False, True])
def test_a_leader_is_settled_when_its_metadata_have_the_committed_set(is_known: bool) -> None:
    """The response of the controller may arrive before the metadata. The metadata then have an older set."""
    leader, _ = ask(committed)
    leading = Leading(cast(Any, SimpleNamespace(leader=leader)), None, lambda: 0, lambda: None)
    leading.metadata_epoch = leader.partition_epoch if is_known else leader.partition_epoch - 1
    assert leading.is_settled is is_known


def test_a_leader_is_not_settled_while_the_outcome_of_its_proposal_is_unknown() -> None:
    leader, _ = ask(lost)
    leading = Leading(cast(Any, SimpleNamespace(leader=leader)), None, lambda: 0, lambda: None)
    leading.metadata_epoch = leader.partition_epoch
    assert not leading.is_settled
