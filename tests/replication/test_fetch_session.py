"""A fetch session on the follower's side. Each request contains only the changes since the last request."""

from uuid import UUID

from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.partitions import PartitionKey
from moldau.replication.core.follower import FetchPosition
from moldau.replication.fetching.fetch_session import FetchLimits, FollowerSession
from moldau.runtime import ErrorCode

A, B = (PartitionKey(UUID(int=number), 0) for number in (1, 2))


class Follower:
    """A session and the positions of its partitions. None means that a partition is not requested."""

    def __init__(self) -> None:
        self.session = FollowerSession(3, FetchLimits())
        self.positions: dict[PartitionKey, FetchPosition | None] = {}

    def follow(self, *keys: PartitionKey) -> None:
        for key in keys:
            self.positions[key] = FetchPosition(1, 5, 0, -1)
            self.session.add(key)

    def move(self, key: PartitionKey, offset: int | None) -> None:
        self.positions[key] = None if offset is None else FetchPosition(1, 5, offset, 5)
        self.session.changed(key)

    def request(self) -> FetchRequest | None:
        return self.session.request(lambda key: self.positions[key], 77)

    def exchange(self, session_id: int = 9) -> FetchRequest:
        request = self.request()
        assert request is not None
        assert self.session.accept(FetchResponse(session_id=session_id))
        return request


def named(request: FetchRequest) -> dict[PartitionKey, int]:
    return {
        PartitionKey(topic.topic_id, row.partition): row.fetch_offset
        for topic in request.topics
        for row in topic.partitions
    }


def forgotten(request: FetchRequest) -> set[PartitionKey]:
    rows = request.forgotten_topics_data
    return {PartitionKey(row.topic_id, index) for row in rows for index in row.partitions}


def test_a_session_begins_with_everything_and_continues_with_what_has_changed() -> None:
    follower = Follower()
    follower.follow(A, B)
    first = follower.exchange()
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {A: 0, B: 0})
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (3, 77)
    follower.move(B, 7)
    second = follower.exchange()
    assert (second.session_id, second.session_epoch, named(second)) == (9, 1, {B: 7})
    third = follower.exchange()
    assert (third.session_epoch, named(third), third.max_wait_ms) == (2, {}, 500)


def test_a_partition_without_a_position_leaves_the_session_and_returns_later() -> None:
    follower = Follower()
    follower.follow(A, B)
    follower.exchange()
    follower.move(A, None)
    request = follower.exchange()
    assert (named(request), forgotten(request)) == ({}, {A})
    assert follower.session.sent(A) is None
    follower.move(A, 4)
    assert named(follower.exchange()) == {A: 4}


def test_the_leader_is_notified_immediately_when_the_last_partition_is_removed() -> None:
    follower = Follower()
    follower.follow(A)
    follower.exchange()
    follower.session.remove(A)
    request = follower.exchange()
    assert (forgotten(request), request.max_wait_ms) == ({A}, 0)
    assert follower.request() is None


def test_after_a_lost_session_everything_is_named_again() -> None:
    follower = Follower()
    follower.follow(A, B)
    follower.exchange()
    follower.move(A, 4)
    assert follower.request() is not None
    assert not follower.session.accept(FetchResponse(error_code=ErrorCode.fetch_session_id_not_found))
    again = follower.exchange()
    assert (again.session_id, again.session_epoch, named(again)) == (0, 0, {A: 4, B: 0})


def test_without_a_session_every_request_is_a_full_one() -> None:
    follower = Follower()
    follower.follow(A, B)
    follower.exchange(session_id=0)
    assert named(follower.exchange(session_id=0)) == {A: 0, B: 0}


def test_a_partition_that_cannot_be_asked_for_yet_is_not_named() -> None:
    follower = Follower()
    follower.follow(A)
    follower.move(A, None)
    assert follower.request() is None
    follower.move(A, 0)
    assert named(follower.exchange()) == {A: 0}


def test_a_partition_that_is_added_again_is_forgotten_first() -> None:
    """Between the removal and the addition, the follower may have ignored a response with a new high
    watermark. A leader does not repeat the high watermark in a session."""
    follower = Follower()
    follower.follow(A, B)
    follower.exchange()
    follower.session.remove(A)
    follower.session.add(A)
    request = follower.exchange()
    assert (named(request), forgotten(request), request.max_wait_ms) == ({}, {A}, 0)
    assert follower.session.sent(A) is None
    request = follower.exchange()
    assert (named(request), forgotten(request), request.max_wait_ms) == ({A: 0}, set(), 500)


def test_a_partition_that_is_added_again_at_another_position_is_named_at_once() -> None:
    follower = Follower()
    follower.follow(A)
    follower.exchange()
    follower.session.remove(A)
    follower.session.add(A)
    follower.move(A, 3)
    request = follower.exchange()
    assert (named(request), forgotten(request)) == ({A: 3}, set())
