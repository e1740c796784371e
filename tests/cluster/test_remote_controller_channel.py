"""The channel to an active controller in another process during changes of leaders, in virtual time."""

import asyncio
from typing import Any, cast

import pytest

from moldau.cluster.controller.channel import DEADLINE_MAX_S, Caller, deadline_of
from moldau.cluster.controller.envelope import seal, unwrap
from moldau.cluster.controller.network_channel import NetworkControllerChannel
from moldau.network.context import ConnectionContext, Principal, RequestContext
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.envelope import EnvelopeResponse
from moldau.quorum.core.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.requests.forwarding import forward
from moldau.simulation.world.world import World

ALICE = Caller(Principal("User", "alice"), "admin-1", "10.0.0.7")
VOTERS = VoterSet(Voter(ReplicaKey(node_id), f"c{node_id}", 9093) for node_id in (1, 2))


class Client:
    """A channel that can connect only to the hosts in ``connects``. Hosts that are also in ``answers`` send
    their own name as the response. All other hosts never respond."""

    def __init__(self, connects: set[str], answers: set[str]) -> None:
        self.connects = connects
        self.answers = answers

    async def version_of(self, host: str, port: int, api_key: int) -> int:
        if host not in self.connects:
            await asyncio.Event().wait()
        return 2

    async def request(
        self, host: str, port: int, api_key: int, version: int | None, message: Any, timeout_ms: int
    ) -> Any:
        if host not in self.answers:
            await asyncio.Event().wait()
        return host


async def send_over_a_move(client: Any) -> tuple[Any, float]:
    """Send a request while node 1 leads, and let node 2 become the leader a second later. Returns the
    response or the error code, and the time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    channel = NetworkControllerChannel(client, VOTERS.get, lambda: 1 if loop.time() < began + 1 else 2)
    try:
        answer = await channel.send(BrokerHeartbeatRequest())
    except KafkaError as error:
        answer = error.code
    return answer, loop.time() - began


@pytest.mark.parametrize(
    ("connects", "answers", "outcome", "within_s"),
    [
        ({"c1", "c2"}, {"c1", "c2"}, "c1", 0.1),
        # The first leader cannot be reached, so it never got the request. Therefore the channel sends the
        # request to the next leader.
        ({"c2"}, {"c2"}, "c2", 1.2),
        # The node that received the request may have executed it, so the channel waits a little longer for
        # the response.
        ({"c1", "c2"}, {"c2"}, ErrorCode.not_controller, 2.2),
    ],
)
def test_a_silent_leader_is_left_for_its_successor(
    connects: set[str], answers: set[str], outcome: Any, within_s: float
) -> None:
    with World(1) as world:
        answer, took_s = world.run(send_over_a_move(Client(connects, answers)))
    assert answer == outcome
    assert took_s <= within_s


async def send_until(client: Any, leader_id: int | None, wait_s: float | None) -> tuple[Any, float]:
    """Send a request for a client that waits for ``wait_s``. Returns the error code and the time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    channel = NetworkControllerChannel(client, VOTERS.get, lambda: leader_id)
    with pytest.raises(KafkaError) as raised:
        await channel.send(CreateTopicsRequest(), ALICE, None if wait_s is None else began + wait_s)
    return raised.value.code, round(loop.time() - began, 1)


@pytest.mark.parametrize("leader_id", [1, None])
@pytest.mark.parametrize("connects", [{"c1"}, set()])
@pytest.mark.parametrize(
    ("wait_s", "outcome"),
    [
        (0.7, (ErrorCode.request_timed_out, 0.7)),
        (50.0, (ErrorCode.request_timed_out, 50.0)),
        (None, (ErrorCode.not_controller, 30.0)),
    ],
)
def test_a_caller_is_answered_by_its_deadline(
    leader_id: int | None, connects: set[str], wait_s: float | None, outcome: Any
) -> None:
    with World(1) as world:
        assert world.run(send_until(Client(connects, set()), leader_id, wait_s)) == outcome


def test_a_lost_answer_is_logged_with_the_name_of_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    with World(1) as world:
        world.run(send_until(Client({"c1"}, set()), 1, 0.7))
    assert "CreateTopicsRequest of User:alice (client 'admin-1' at 10.0.0.7): " in caplog.text


class Resigned(Client):
    """The first controller responds that it is not the leader any more. The second controller serves the
    request."""

    async def request(
        self, host: str, port: int, api_key: int, version: int | None, message: Any, timeout_ms: int
    ) -> Any:
        if host == "c1":
            return EnvelopeResponse(error_code=ErrorCode.not_controller)
        return seal(unwrap(message).header, CreateTopicsResponse(throttle_time_ms=7))


def test_a_request_that_was_not_begun_goes_to_the_next_leader() -> None:
    async def story() -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        channel = NetworkControllerChannel(
            cast(Any, Resigned({"c1", "c2"}, set())), VOTERS.get, lambda: 1 if loop.time() < began + 1 else 2
        )
        return await channel.send(CreateTopicsRequest(), ALICE, began + 30)

    with World(1) as world:
        assert world.run(story()).throttle_time_ms == 7


def context_with(received_at: float) -> RequestContext:
    connection = ConnectionContext("1", "EXTERNAL", peer_host="10.0.0.7", principal=ALICE.principal)
    return RequestContext(CreateTopicsRequest.API_KEY, 7, 1, "admin-1", connection, received_at)


@pytest.mark.parametrize(
    ("timeout_ms", "deadline"), [(1_500, 11.5), (2**31 - 1, 10 + DEADLINE_MAX_S), (0, None), (-1, None)]
)
def test_the_deadline_of_a_request_counts_from_its_arrival(timeout_ms: int, deadline: float | None) -> None:
    assert deadline_of(context_with(10.0), CreateTopicsRequest(timeout_ms=timeout_ms)) == deadline
    assert deadline_of(context_with(10.0), BrokerHeartbeatRequest()) is None


def test_each_row_reports_a_missing_controller_before_the_clients_deadline() -> None:
    async def ask() -> Any:
        loop = asyncio.get_running_loop()
        channel = NetworkControllerChannel(cast(Any, Client(set(), set())), VOTERS.get, lambda: None)
        request = CreateTopicsRequest(topics=[CreatableTopic(name="t")], timeout_ms=700)
        response = await forward(channel, context_with(loop.time()), request)
        return response, loop.time()

    with World(1) as world:
        began = world.loop.time()
        response, ended = world.run(ask())
    assert [(row.name, row.error_code) for row in response.topics] == [("t", ErrorCode.request_timed_out)]
    assert ended - began <= 0.7
    assert "knows of no leader" in response.topics[0].error_message
