"""Groups of a scenario with several nodes: clients that commit offsets, and members of a group that join and
leave."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.clients.client import Bootstrap
from moldau.simulation.history import History
from moldau.simulation.offsets.committer import OffsetCommitter
from moldau.simulation.offsets.member import CommittingMember, GroupMonitor
from moldau.simulation.scenario import Scenario
from moldau.simulation.seeds import stream

PAUSE_S = 0.3


class GroupsAtWork:
    """The groups of a scenario. By default there are no groups."""

    def __init__(
        self,
        scenario: Scenario,
        history: History,
        seed: int,
        brokers: Sequence[Bootstrap],
        partitions: Sequence[TopicPartition],
        run_on: "Callable[[str, Coroutine[Any, Any, Any]], asyncio.Task[Any]]",
    ) -> None:
        """``partitions`` are the partitions of the topic whose offsets are committed. ``run_on`` runs a
        coroutine on a host."""
        first, *others = brokers
        topic, count, monitor = partitions[0].topic, len(partitions), GroupMonitor("members", history)
        self._scenario = scenario
        self._run_on = run_on
        self._committers = [
            OffsetCommitter(name, first, history, stream(seed, name), topic, count)
            for name in (f"group-{number}" for number in range(scenario.committer_count))
        ]
        self._members = [
            CommittingMember(name, first, monitor, stream(seed, name), count)
            for name in (f"member-{number}" for number in range(scenario.group_member_count))
        ]
        for each in (*self._committers, *self._members):
            each.others = tuple(others)

    def start(self) -> "list[asyncio.Task[Any]]":
        """Start the clients. Each task ends when its client has finished its work."""
        scenario = self._scenario
        committing = [each.run(scenario.commits_per_committer, pause_s=PAUSE_S) for each in self._committers]
        joining = [each.run(scenario.joins_per_member) for each in self._members]
        clients = (*self._committers, *self._members)
        return [
            self._run_on(each.name, work) for each, work in zip(clients, (*committing, *joining), strict=True)
        ]

    async def verify(self) -> None:
        """For every group, compare the committed offsets with the acknowledged commits."""
        for each in self._committers:
            await self._run_on(f"{each.name} judge", each.verify())
