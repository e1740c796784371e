"""The controller with a log in memory: decisions before their commit, commits, loss of leadership, sessions,
snapshots and images."""

import asyncio
import uuid
from typing import Any

import pytest
from controller_node import Node, run

from moldau.cluster.controller.channel import Caller
from moldau.cluster.errors import MetadataError
from moldau.cluster.image.delta import MetadataDelta, image_of
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.metadata_log import MetadataBatch
from moldau.cluster.publisher import MetadataPublisher
from moldau.cluster.snapshot_schedule import SnapshotGenerator
from moldau.network.context import Principal
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.controller_registration import ControllerRegistrationRequest
from moldau.protocol.messages.controller_registration import Feature as SupportedController
from moldau.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau.protocol.records import metadata as r
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode


def test_a_controller_that_does_not_lead_refuses_changes() -> None:
    async def test() -> None:
        node = Node()
        response = await node.create("t")
        assert response.topics[0].error_code is ErrorCode.not_controller

    run(test())


def test_the_first_leader_bootstraps_and_a_later_one_does_not() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        assert node.publisher.image.metadata_version == 29
        committed = len(node.log.committed)
        await node.lead()
        assert len(node.log.committed) == committed
        node.service.close()

    run(test())


def no_op_count(node: Node) -> int:
    records = (r.RECORDS.decode(value) for batch in node.log.committed for value in batch.values)
    return sum(isinstance(record, r.NoOpRecord) for record in records)


def test_the_active_controller_writes_a_no_op_at_each_interval() -> None:
    async def test() -> None:
        node = Node(no_op_interval_ms=500)
        await node.lead()
        image = node.publisher.image
        await asyncio.sleep(10.2)
        assert no_op_count(node) == 20
        assert node.publisher.image == image
        assert node.publisher.image.provenance.offset == image.provenance.offset + 20
        node.log.elect(2)
        await asyncio.sleep(10)
        assert no_op_count(node) == 20
        node.service.close()

    run(test())


def test_no_no_op_comes_between_the_offsets_of_a_decision() -> None:
    async def test() -> None:
        node = Node(no_op_interval_ms=500)
        await node.lead()
        async with node.service._deciding:
            await asyncio.sleep(2.2)
        assert no_op_count(node) == 0
        await asyncio.sleep(1)
        assert no_op_count(node) == 2
        # The quorum on this node has stopped, but the node has not reported this yet.
        node.log.refuse_next = True
        await asyncio.sleep(1)
        assert no_op_count(node) == 3
        node.service.close()

    run(test())


def test_a_broker_epoch_is_the_offset_of_its_record() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        epoch = await node.add_broker()
        batch = next(batch for batch in node.log.committed if batch.base_offset <= epoch <= batch.last_offset)
        record = r.RECORDS.decode(batch.values[epoch - batch.base_offset])
        assert isinstance(record, r.RegisterBrokerRecord)
        node.service.close()

    run(test())


def test_decisions_are_pipelined_and_answered_after_the_commit() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        node.log.auto = False
        first, second = node.create("t"), node.create("t")
        await asyncio.sleep(0.01)
        # The second change depends on the first change. So the response to the second change must wait while
        # the first change can still be lost.
        assert not first.done()
        assert not second.done()
        assert len(node.log.pending) == 1
        node.log.commit()
        assert (await first).topics[0].error_code is ErrorCode.none
        assert (await second).topics[0].error_code is ErrorCode.topic_already_exists
        assert node.publisher.image.topics.get("t") is not None
        node.service.close()

    run(test())


def test_uncommitted_changes_are_dropped_when_the_leadership_ends() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        node.log.auto = False
        creation = node.create("t")
        await asyncio.sleep(0.01)
        node.log.elect(2)
        assert (await creation).topics[0].error_code is ErrorCode.not_controller
        assert not node.service.is_active
        node.log.auto = True
        await node.lead()
        assert (await node.create("t")).topics[0].error_code is ErrorCode.none
        node.service.close()

    run(test())


def test_an_append_that_is_refused_leaves_no_trace() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        node.log.refuse_next = True
        assert (await node.create("t")).topics[0].error_code is ErrorCode.record_list_too_large
        assert (await node.create("t")).topics[0].error_code is ErrorCode.none
        node.service.close()

    run(test())


@pytest.mark.parametrize(("partitions", "pieces"), [(1, 0), (600, 2)])
def test_a_silent_broker_is_fenced_when_its_session_ends(
    caplog: pytest.LogCaptureFixture, partitions: int, pieces: int
) -> None:
    async def test() -> None:
        node = Node(session_timeout_ms=30)
        await node.lead()
        await node.add_broker()
        await node.channel.send(_many("t", partitions))
        assert not node.publisher.image.brokers[1].fenced
        before = node.workers.pieces  # all requests have been decided, and the next check is scheduled
        await asyncio.wait_for(node.publisher.until(lambda: node.publisher.image.brokers[1].fenced), 5)
        topic = node.publisher.image.topics.get("t")
        assert topic is not None
        assert topic.partitions[0].leader == -1
        await asyncio.sleep(1)
        assert node.workers.pieces - before == pieces
        node.service.close()

    run(test())
    assert "controller 1: broker 1 is fenced, its heartbeats have stopped" in caplog.messages


def test_the_loop_turns_while_the_state_of_a_broker_with_many_replicas_changes() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        epoch = await node.add_broker()
        await node.channel.send(_many(count=600))
        before = node.workers.pieces

        async def beat(*, want_fence: bool = False) -> None:
            await node.channel.send(
                BrokerHeartbeatRequest(
                    broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch, want_fence=want_fence
                )
            )

        await beat()
        assert node.workers.pieces == before
        await beat(want_fence=True)
        assert node.publisher.image.brokers[1].fenced
        await beat()
        assert not node.publisher.image.brokers[1].fenced
        assert node.workers.pieces == before + 2
        await node.channel.send(UnregisterBrokerRequest(broker_id=1))
        assert node.workers.pieces == before + 3

    run(test())


@pytest.mark.parametrize("others", [1, 600])
@pytest.mark.parametrize(("interval_ms", "leader"), [(700, 1), (0, 2)])
def test_a_leadership_goes_back_to_the_preferred_replica_once_it_is_in_sync(
    interval_ms: int, leader: int, others: int
) -> None:
    async def test() -> None:
        node = Node(session_timeout_ms=600_000, balance_interval_ms=interval_ms)
        await node.lead()
        await node.add_broker(1)
        await node.add_broker(2)
        assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment])
        await node.channel.send(CreateTopicsRequest(topics=[topic]))
        await node.channel.send(_many("others", others))
        created = node.publisher.image.topics.get("t")
        assert created is not None
        moved = r.PartitionChangeRecord(partition_id=0, topic_id=created.topic_id, leader=2)
        node.service._append([moved])
        await asyncio.sleep(0.5)
        assert _leader(node) == 2
        await asyncio.sleep(0.5)
        assert _leader(node) == leader
        node.service.close()

    run(test())


def _leader(node: Node) -> int:
    topic = node.publisher.image.topics.get("t")
    assert topic is not None
    return topic.partitions[0].leader


class Follower:
    """A subscriber that builds its own image from deltas only."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.removed: list[str] = []

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        assert delta.image == self.image
        self.removed += [topic.name for topic in delta.topics.removed.values()]
        self.image = delta.apply()
        assert self.image == image


class Faulty:
    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        raise RuntimeError("a part that fails")


def test_subscribers_follow_by_deltas_also_over_a_snapshot() -> None:
    async def test() -> None:
        node = Node()
        follower, late = Follower(), Follower()
        node.publisher.subscribe(Faulty())
        node.publisher.subscribe(follower)
        await node.lead()
        await node.add_broker()
        await node.create("kept")
        await node.create("also-kept")
        generator = SnapshotGenerator(node.log, node.publisher, bytes_between=1, interval_ms=0)
        node.log.add_listener(generator)
        await asyncio.wait_for(node.log.frozen.wait(), 5)
        end_offset, values = node.log.snapshots.popitem()
        await node.channel.send(DeleteTopicsRequest(topics=[DeleteTopicState(name="kept")]))
        node.publisher.subscribe(late)
        assert len(late.image.topics) == 1
        await node.create("gone")
        for _ in node.publisher.on_snapshot(end_offset, 1, 1, values):
            pass
        assert follower.image == late.image == node.publisher.image
        assert node.publisher.image == image_of(r.RECORDS.decode(value) for value in values)
        assert node.publisher.image.provenance.offset == end_offset - 1
        assert [topic.name for topic in follower.image.topics] == ["also-kept", "kept"]
        assert follower.removed == ["kept", "gone"]
        await generator.close()
        node.service.close()

    run(test())


def test_metadata_transactions_become_visible_completely_or_not_at_all() -> None:
    def batch(offset: int, *records: Any) -> MetadataBatch:
        return MetadataBatch(offset, 1, 1, [r.RECORDS.encode(record) for record in records])

    publisher = MetadataPublisher(lambda error: None)
    topic = r.TopicRecord(name="t", topic_id=uuid.UUID(int=1000))
    publisher.on_commit([batch(0, r.BeginTransactionRecord(), topic)])
    assert len(publisher.image.topics) == 0
    publisher.on_commit([batch(2, r.AbortTransactionRecord())])
    assert len(publisher.image.topics) == 0
    publisher.on_commit([batch(3, r.BeginTransactionRecord(), topic), batch(5, r.EndTransactionRecord())])
    assert len(publisher.image.topics) == 1


def test_a_log_that_contradicts_itself_stops_the_node() -> None:
    faults: list[MetadataError] = []
    publisher = MetadataPublisher(faults.append)
    value = r.RECORDS.encode(r.RemoveTopicRecord(topic_id=uuid.UUID(int=1000)))
    publisher.on_commit([MetadataBatch(0, 1, 1, [value])])
    publisher.on_commit([MetadataBatch(1, 1, 1, [value])])
    assert len(faults) == 1
    assert "offset 0" in str(faults[0])


def _many(name: str = "many", count: int = 10_000) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


def test_the_loop_runs_while_a_large_request_is_decided_and_later_requests_see_its_changes() -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        large = asyncio.ensure_future(node.channel.send(_many()))
        second = asyncio.ensure_future(node.channel.send(_many(count=1)))
        assert (await large).topics[0].error_code is ErrorCode.none
        # The worker thread has decided on the change, replayed it and encoded it.
        assert node.workers.pieces == 3
        assert (await second).topics[0].error_code is ErrorCode.topic_already_exists
        created = node.publisher.image.topics.get("many")
        assert created is not None
        assert len(created.partitions) == 10_000

    run(test())


ALICE = Caller(Principal("User", "alice"), "admin-1", "10.0.0.7")


def test_changes_are_logged_with_the_name_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "moldau.cluster.controller.service")

    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        topic = DeleteTopicState(name="unknown")
        await node.channel.send(DeleteTopicsRequest(topics=[topic]), ALICE)
        await node.channel.send(_many(count=1), ALICE)
        await node.channel.send(_many("internal", 1))

    run(test())
    lines = [line for line in caplog.messages if "Request" in line]
    assert lines == ["controller 1: CreateTopicsRequest of User:alice (client 'admin-1' at 10.0.0.7)"]


def test_a_refused_registration_of_a_controller_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        old = SupportedController(name="metadata.version", min_supported_version=7, max_supported_version=25)
        request = ControllerRegistrationRequest(
            controller_id=2, incarnation_id=uuid.UUID(int=2), features=[old]
        )
        for _ in range(3):
            answer: Any = await node.channel.send(request)
            assert answer.error_code is ErrorCode.unsupported_version

    run(test())
    reason = "controller 1 refuses a registration: Controller 2 does not support metadata.version 29."
    assert [line for line in caplog.messages if "refuses" in line] == [reason]


@pytest.mark.parametrize(("waits_s", "outcome"), [(0.5, ErrorCode.none), (1.0, ErrorCode.request_timed_out)])
def test_a_request_whose_turn_comes_after_its_deadline_changes_nothing(
    waits_s: float, outcome: ErrorCode
) -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        before = len(node.log.committed)
        async with node.service._deciding:
            deadline = asyncio.get_running_loop().time() + 1
            asked = asyncio.ensure_future(node.channel.send(_many(count=1), ALICE, deadline))
            await asyncio.sleep(waits_s)
        assert (await asked).topics[0].error_code is outcome
        assert (len(node.log.committed) > before) == (outcome is ErrorCode.none)

    run(test())


def test_many_records_are_applied_in_steps_and_show_at_the_last() -> None:
    faults: list[MetadataError] = []
    publisher = MetadataPublisher(faults.append)
    topic_id = uuid.UUID(int=77)
    records: list[Message] = [r.TopicRecord(name="many", topic_id=topic_id)]
    records += [
        r.PartitionRecord(topic_id=topic_id, partition_id=n, replicas=[1], isr=[1], leader=1)
        for n in range(5_000)
    ]
    batch = MetadataBatch(0, 1, 1, [r.RECORDS.encode(record) for record in records])
    steps = publisher.on_commit([batch])
    assert steps is not None
    count = 0
    for _ in steps:
        count += 1
        assert publisher.image.topics.get("many") is None
    assert count >= 10
    created = publisher.image.topics.get("many")
    assert created is not None
    assert len(created.partitions) == 5_000
    assert not faults


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_a_large_request_that_is_cancelled_or_loses_its_term_leaves_nothing(turns: int) -> None:
    async def test() -> None:
        node = Node()
        await node.lead()
        await node.add_broker()
        before = len(node.log.committed)
        cancelled = asyncio.ensure_future(node.channel.send(_many()))
        late = asyncio.ensure_future(node.channel.send(_many("late")))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        for _ in range(turns):
            await asyncio.sleep(0)
        node.log.elect(2)
        assert (await late).topics[0].error_code is ErrorCode.not_controller
        assert len(node.log.committed) == before
        await node.lead()
        assert (await node.create("many")).topics[0].error_code is ErrorCode.none

    run(test())
