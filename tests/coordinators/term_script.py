"""The language of the golden scripts about epochs of leadership. A script has one command on each line, then
``----``, then the output. The commands are::

    lead PARTITION EPOCH [topic=N]      begin to lead a partition
    resign PARTITION EPOCH [topic=N]    stop leading a partition
    write PARTITION NUMBER              add a number to the total of a partition
    settle                              wait until loads and unloads have ended
    show                                print the partitions that are led, with their states
    damage PARTITION EPOCH              the store of this epoch requests a rebuild

Topics with the same name have different values of ``topic``.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from memory_coordinator_log import MemoryLog
from moldau.cluster.internal_topics import InternalTopic, StateRetention, StateTopic
from moldau.coordinators.effects import BatchKind, Effects, TimerKey, Token, answer
from moldau.coordinators.kind import CoordinatorKind, Term
from moldau.coordinators.runtime import CoordinatorRuntime
from moldau.coordinators.shard import CommittedRecord
from moldau.protocol.partitions import PartitionKey
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime import KafkaError
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.coordinators.registry import CoordinatorRegistry
from moldau.simulation.world.world import World

TOPIC = "__sums"


class SumShard:
    """A shard that adds numbers."""

    def __init__(self) -> None:
        self.total = 0

    def replay(self, offset: int, record: int, kind: BatchKind) -> None:
        self.total += record

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...

    def on_loaded(self, now_ms: int) -> Effects[int]:
        return Effects()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[int]:
        return Effects()

    def add(self, number: int, token: Token) -> Effects[int]:
        return answer(token, self.total + number, [number])


class SumCodec:
    def encode(self, record: int) -> tuple[bytes | None, bytes | None]:
        return None, str(record).encode()

    def decode(self, key: bytes | None, value: bytes | None) -> int | None:
        return int(value or b"0")


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class LedPartition(ClassicPartition):
    """A partition without data. It has only its identity."""

    def __init__(self, topic_id: UUID, index: int) -> None:
        self._identity = PartitionKey(topic_id, index)

    @property
    def key(self) -> PartitionKey:
        return self._identity

    @property
    def topic(self) -> str:
        return TOPIC


class TermModel:
    """A kind of coordinator with a store. The registry begins and ends the terms of its coordinators. The
    model records each load, each change of the store and each unload."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.logs: dict[PartitionKey, MemoryLog] = {}
        kind: CoordinatorKind[SumShard, int] = CoordinatorKind(
            topic=StateTopic(name=TOPIC, retention=StateRetention.COMPACTED, factor_key="", saved_in_step=0),
            new_shard=lambda partition: SumShard(),
            codec=SumCodec(),
            open_log=self._open,
            new_store=lambda term: ToldStore(self, term),
        )
        self.runtime = CoordinatorRuntime(kind, FixedClock())
        entry = CoordinatorEntry(topic=InternalTopic(TOPIC, 1, 1, ""), leaders=self)
        self.registry = CoordinatorRegistry([entry])

    def _open(self, partition: ClassicPartition) -> MemoryLog:
        return self.logs.setdefault(partition.key, MemoryLog())

    def lead(self, partition: ClassicPartition, epoch: int) -> None:
        self.events.append(f"load {partition.key.partition} epoch {epoch}")
        self.runtime.lead(partition, epoch)

    def leave(self, partition: int, epoch: int) -> None:
        self.events.append(f"unload {partition} epoch {epoch}")
        self.runtime.leave(partition, epoch)

    async def run(self, words: Sequence[str]) -> list[str]:
        """The output of a command, line by line."""
        self.events = []
        name, *rest = words
        topic_id = UUID(int=int(rest.pop().split("=")[1])) if rest and "=" in rest[-1] else UUID(int=1)
        numbers = [int(word) for word in rest]
        match name, numbers:
            case "lead", [partition, epoch]:
                self.registry.leads(LedPartition(topic_id, partition), epoch)
            case "resign", [partition, epoch]:
                self.registry.no_longer_leads(TOPIC, topic_id, partition, epoch)
            case "damage", [partition, epoch]:
                self.runtime.reload(partition, epoch)
            case "write", [partition, number]:
                await self._write(partition, number)
            case "settle", []:
                # There is no disk, so a load or a close takes only a few iterations of the event loop.
                for _ in range(20):
                    await asyncio.sleep(0)
            case "show", []:
                for partition in self.runtime.partitions:
                    led = self.runtime.led(partition)
                    assert led is not None
                    self.events.append(f"{partition} epoch {led.term.epoch} {led.state.value}")
            case _:
                raise ValueError(words)
        return self.events or ["nothing"]

    async def _write(self, partition: int, number: int) -> None:
        try:
            total = await self.runtime.write(partition, lambda shard, _, token: shard.add(number, token))
            self.events.append(f"total {total}")
        except KafkaError as error:
            self.events.append(error.code.name)


class ToldStore:
    """A store that adds each restore and each close to the events of its model."""

    def __init__(self, model: TermModel, term: Term) -> None:
        self._tell = lambda news: model.events.append(f"store of {term.partition} epoch {term.epoch} {news}")

    async def restore(self, shard: object) -> int | None:
        self._tell("restored")
        return None

    def committed(self, records: Sequence[CommittedRecord], up_to_offset: int) -> None: ...

    async def close(self) -> None:
        self._tell("closed")


def run_script(text: str) -> str:
    """The script with the current output of the code."""

    async def play() -> str:
        model = TermModel()
        parts = []
        for block in text.strip().split("\n\n"):
            command = block.partition("\n----")[0]
            lines = []
            for line in command.splitlines():
                if not line.startswith("#"):
                    lines += await model.run(line.split())
            parts.append("\n".join([command, "----", *lines]))
        await model.runtime.close()
        return "\n\n".join(parts) + "\n"

    with World(1) as world:
        return world.run(play())
