"""A diskless topic that an administrator deletes and creates again several times under the same name."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from moldau.protocol.partitions import TopicPartition
from moldau.simulation.clients.client import Sending, SimulatedClient
from moldau.simulation.clients.roving import RovingProducer
from moldau.simulation.history import History

PASSING: Final = "passing"
PASSING_PARTITIONS: Final = 3
LAST: Final = TopicPartition(PASSING, PASSING_PARTITIONS - 1)
"""The partition to which only the last producer writes, when the topic is not deleted any more."""
PASSES: Final = 4
PRODUCERS: Final = 3
"""Number of producers of a pass. Each of them changes brokers often. So their batches are in objects with
batches of other topics, whose coordinators must take over these objects when the topic is deleted."""
PASS_LIMIT_S: Final = 60.0


class PassingTopic:
    """Plays the story of the topic.

    ``begin`` makes a client, ``run`` runs a client's work on its own host, and ``create`` creates the topic.
    ``topic_id`` returns the topic's id in the newest metadata; ``None`` if there is no such topic.
    """

    def __init__(
        self,
        begin: Callable[..., Any],
        run: Callable[[str, Coroutine[Any, Any, Any]], "asyncio.Task[Any]"],
        create: Callable[[SimulatedClient], Coroutine[Any, Any, None]],
        topic_id: Callable[[], UUID | None],
        history: History,
    ) -> None:
        self._begin = begin
        self._run = run
        self._create = create
        self._topic_id = topic_id
        self._history = history
        self._kept: UUID | None = None

    @property
    def remains(self) -> bool:
        """Whether the topic was kept, with the records in :data:`LAST`. A repeated DeleteTopics request may
        have deleted it later."""
        return self._kept is not None and self._kept == self._topic_id()

    async def play(self, client: SimulatedClient) -> None:
        """Create, fill and delete the topic several times, sometimes while a producer still writes to it. The
        last topic may be kept."""
        chance, writing = client.chance, []
        for number in range(PASSES):
            await self._create(client)
            first = chance.randrange(PASSING_PARTITIONS - 1)
            for producer in range(PRODUCERS):
                where = TopicPartition(PASSING, (first + producer) % (PASSING_PARTITIONS - 1))
                writing.append(self._write(f"passer-{number}-{producer}", where))
            if chance.random() < 0.5:
                await self._wait_for(*writing[-PRODUCERS:])
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            if number < PASSES - 1 or chance.random() < 0.5:
                await client.delete_topic(PASSING)
            else:
                self._kept = self._topic_id()
                writing.append(self._write("last-passer", LAST))
                await self._wait_for(writing[-1])
        for each in writing:
            if each.done() and each.exception() is not None:
                self._history.violate(f"a producer of {PASSING} failed: {each.exception()!r}")
            each.cancel()

    def _write(self, name: str, where: TopicPartition) -> "asyncio.Task[Any]":
        producer = self._begin(RovingProducer, name, where, Sending(idempotent=True))
        return self._run(name, producer.run(60, pause_s=0.1))

    @staticmethod
    async def _wait_for(*writing: "asyncio.Task[Any]") -> None:
        # A repeated request may delete the new topic. Its producers then never end.
        await asyncio.wait(writing, timeout=PASS_LIMIT_S)
