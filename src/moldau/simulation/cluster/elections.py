"""Disturbs the elections of a quorum, and stops voters directly after they have voted."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from moldau.quorum.core.election_state import ElectionState
from moldau.simulation.history import History
from moldau.simulation.nemesis import Fault, Nemesis, Weather
from moldau.simulation.world.host import Host
from moldau.simulation.world.world import World

ELECTIONS: Final = 3
"""Number of disturbed elections in each run with whole nodes."""
VOTES: Final = 5
"""Number of votes after which a voter is stopped, in a scenario about votes."""
LOOK_EVERY_S: Final = 0.000_5
STAND_LIMIT_S: Final = 6.0
"""Time limit within which two voters without a leader must become candidates. After this time, the attempt to
disturb this election is abandoned."""


class Voters(Protocol):
    """The voters of a quorum. Their elections are disturbed."""

    def leader_id(self) -> int:
        """The id of the leader that a replica knows; 0 when it knows no leader."""
        ...

    def election(self, node_id: int) -> ElectionState:
        """Epoch, leader and vote of a voter. The epoch is -1 while the voter does not run."""
        ...

    def next_acknowledgement(self) -> asyncio.Event:
        """Return an event that is set when a client gets the next acknowledgement of a change."""
        ...


@dataclass(frozen=True, slots=True)
class Scene:
    """The parts of a scenario that are needed to disturb elections."""

    world: World
    history: History
    nemesis: Nemesis
    weather: Weather
    voters: Voters
    voter_ids: tuple[int, ...]
    chance: random.Random
    fault_count: int

    @property
    def power_lost(self) -> bool:
        """Whether the host of a stopped voter loses its power. Otherwise only the voter's process ends."""
        return Fault.POWER_LOSS in self.weather.faults

    def host(self, node_id: int) -> Host:
        return self.world.host(_name(node_id))

    @contextlib.contextmanager
    def cut(self, *links: tuple[int, int]) -> Iterator[None]:
        """Hold back the messages on these links. Each link is a pair of a sender and a receiver."""
        for source, target in links:
            self.world.network.cut(_name(source), _name(target))
        try:
            yield
        finally:
            for source, target in links:
                self.world.network.heal(_name(source), _name(target))

    def delay(self, target: int, seconds: float, *sources: int) -> None:
        """Delay messages from these nodes to another node."""
        for source in sources:
            self.world.network.delay(_name(source), _name(target), seconds)


async def disturb_elections(scene: Scene) -> None:
    """Disturb some elections. After that, let the nemesis inject faults into any node."""
    for _ in range(ELECTIONS):
        await asyncio.sleep(scene.chance.uniform(0.5, 3.0))
        await _disturb_election(scene)
    await scene.nemesis.storm(scene.fault_count)


async def stop_after_votes(scene: Scene) -> None:
    """Repeatedly stop a voter between its vote and the next vote request."""
    for _ in range(VOTES):
        await asyncio.sleep(scene.chance.uniform(0.5, 2.0))
        await _stop_after_vote(scene)
    await scene.nemesis.storm(scene.fault_count)


async def strike(scene: Scene) -> None:
    """Let the nemesis inject faults into any node."""
    await scene.nemesis.storm(scene.fault_count)


async def _disturb_election(scene: Scene) -> None:
    """Restart the leader and then voters. Often, two voters cannot reach each other during this time.

    A voter that forgets its vote can then vote for both candidates in the same epoch.
    """
    chance, network = scene.chance, scene.world.network
    one, other, third = (_name(node_id) for node_id in chance.sample(scene.voter_ids, 3))
    is_parted = chance.random() < 0.7
    if is_parted:
        network.cut(one, other)
        network.cut(other, one)
    if scene.power_lost:
        await _black_out(scene)
    leader_id = scene.voters.leader_id()
    restarted = [_name(leader_id) if leader_id else third]
    restarted += [third if is_parted else chance.choice((one, other, third)) for _ in range(4)]
    scene.history.note(f"restarts of {restarted}, {one} and {other} parted: {is_parted}")
    for name in restarted:
        pause_s = chance.uniform(0.01, 1.0)
        await scene.nemesis.restart(scene.world.host(name), pause_s, power_lost=scene.power_lost)
        await asyncio.sleep(chance.uniform(0.0, 2.5))
    if is_parted:
        network.heal(one, other)
        network.heal(other, one)


async def _black_out(scene: Scene) -> None:
    """Cut the power of all controllers at the moment when a change is acknowledged."""
    acknowledged = scene.voters.next_acknowledgement()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            await acknowledged.wait()
    scene.history.note("all controllers lose their power")
    hosts = [scene.host(node_id) for node_id in scene.voter_ids]
    pauses_s = [scene.chance.uniform(0.01, 1.0) for _ in hosts]
    await asyncio.gather(
        *(
            scene.nemesis.restart(host, pause_s, power_lost=True)
            for host, pause_s in zip(hosts, pauses_s, strict=True)
        )
    )


async def _stop_after_vote(scene: Scene) -> None:
    """Make two disconnected voters candidates in the same epoch. The third voter stops after its vote.

    The third voter is the leader at first. It is disconnected from both other voters and restarted, so both
    candidates wait for its pre-vote. The messages of the candidates to the third voter are slow. Therefore
    the third voter grants both pre-votes before it gets a vote request. It then receives only the vote
    request of one candidate, and stops. After its restart it receives only the vote request of the other
    candidate.
    """
    chance, voters = scene.chance, scene.voters
    if not await _look_for(scene, lambda: voters.leader_id() != 0, STAND_LIMIT_S):
        return
    third = voters.leader_id()
    first, second = chance.sample([node_id for node_id in scene.voter_ids if node_id != third], 2)
    slow_s = chance.uniform(0.1, 0.2)
    with scene.cut((first, second), (second, first)):
        with scene.cut((first, third), (third, first), (second, third), (third, second)):
            # A follower trusts a silent leader for some time. The restart takes a little longer than this
            # time. The difference is smaller than an election timeout.
            silence_s = chance.uniform(2.0, 2.6)
            await scene.nemesis.restart(scene.host(third), silence_s, power_lost=scene.power_lost)
            # The restarted node has resigned. It begins another epoch when an election timeout has passed.
            await asyncio.sleep(0.4)
        scene.delay(third, slow_s, first, second)
        both_stand = await _look_for(
            scene, lambda: _stands(voters, first) and _stands(voters, second), STAND_LIMIT_S
        )
        scene.delay(third, 0.0, first, second)
        if both_stand:
            await _stop_between(scene, third, first, second)


async def _stop_between(scene: Scene, third: int, first: int, second: int) -> None:
    """Deliver the vote requests of both candidates to the third voter, one after the other."""
    chance, voters = scene.chance, scene.voters
    epoch = voters.election(first).epoch
    with scene.cut((second, third)):
        has_won = await _look_for(scene, lambda: voters.election(first).leader_id == first, 0.5)
        scene.history.note(f"node-{third} stops in epoch {epoch}; node-{first} has won: {has_won}")
        restart_s = chance.uniform(0.01, 0.2)
        await scene.nemesis.restart(scene.host(third), restart_s, power_lost=scene.power_lost)
    with scene.cut((first, third)):
        await asyncio.sleep(chance.uniform(0.5, 2.5))


def _stands(voters: Voters, node_id: int) -> bool:
    election = voters.election(node_id)
    return election.leader_id is None and election.voted is not None and election.voted.id == node_id


async def _look_for(scene: Scene, condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the condition holds. Returns false after ``limit_s``.

    A voter is a candidate only for a short time, so the condition is checked often. A timer needs much less
    CPU time for these checks than a task that sleeps.
    """
    loop = scene.world.loop
    deadline_s = loop.elapsed_s() + limit_s
    found: asyncio.Future[bool] = loop.create_future()

    def check() -> None:
        if found.done():
            return  # the task that waits was cancelled
        try:
            holds = condition()
        except Exception as error:
            found.set_exception(error)
            return
        if holds or loop.elapsed_s() > deadline_s:
            found.set_result(holds)
        else:
            loop.call_later(LOOK_EVERY_S, check)

    check()
    return await found


def _name(node_id: int) -> str:
    return f"node-{node_id}"
