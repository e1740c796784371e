"""The way to an active controller in another process, while leaders come and go: in virtual time."""

import asyncio
from typing import Any

import pytest

from moldau.cluster.remote_controller_channel import RemoteControllerChannel
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.quorum.voters import ReplicaKey, Voter, VoterSet
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world import World

VOTERS = VoterSet(Voter(ReplicaKey(node_id), f"c{node_id}", 9093) for node_id in (1, 2))


class Client:
    """Reaches the hosts in ``connects``; those in ``answers`` answer with their name, the others never."""

    def __init__(self, connects: set[str], answers: set[str]) -> None:
        self.connects = connects
        self.answers = answers

    async def version_of(self, host: str, port: int, api_key: int) -> int:
        if host not in self.connects:
            await asyncio.Event().wait()
        return 1

    async def request(
        self, host: str, port: int, api_key: int, version: int | None, message: Any, timeout_ms: int
    ) -> Any:
        if host not in self.answers:
            await asyncio.Event().wait()
        return host


async def send_over_a_move(client: Any) -> tuple[Any, float]:
    """Send while node 1 leads; node 2 does a second later. The answer, or the error's code, and when."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    channel = RemoteControllerChannel(client, VOTERS, lambda: 1 if loop.time() < began + 1 else 2)
    try:
        answer = await channel.send(BrokerHeartbeatRequest())
    except KafkaError as error:
        answer = error.code
    return answer, loop.time() - began


@pytest.mark.parametrize(
    ("connects", "answers", "outcome", "within_s"),
    [
        ({"c1", "c2"}, {"c1", "c2"}, "c1", 0.1),
        # A leader that cannot be reached is left for its successor: nothing was sent.
        ({"c2"}, {"c2"}, "c2", 1.2),
        # One that has the request may have carried it out: its answer is waited for a little longer.
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
