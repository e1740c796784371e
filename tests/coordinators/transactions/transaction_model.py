"""A transaction shard with its log in a list. Operations run in the same order as in the runtime."""

from collections.abc import Callable, Iterable
from typing import Any

from moldau.coordinators.effects import PLAIN, Effects, SetTimer, Token
from moldau.coordinators.transactions.codec import TransactionCodec, TransactionRecord
from moldau.coordinators.transactions.end_requests import Ending
from moldau.coordinators.transactions.init_requests import Initialization
from moldau.coordinators.transactions.join_requests import Joining
from moldau.coordinators.transactions.settings import TransactionSettings
from moldau.coordinators.transactions.shard import (
    NewProducerIdNeededError,
    ProducerAnswer,
    TransactionShard,
)
from moldau.coordinators.transactions.transaction import ProducerIdentity
from moldau.protocol.partitions import TopicPartition
from moldau.runtime import KafkaError

Pair = tuple[bytes | None, bytes | None]


class TransactionModel:
    """Runs operations one after another, at a time that a test sets."""

    def __init__(self, settings: TransactionSettings | None = None, level: int = 2) -> None:
        self.settings = settings or TransactionSettings()
        self.level = level
        self.now_ms = 1_000_000
        self.log: list[Pair] = []
        self.fresh: list[TransactionRecord] = []
        self.next_id = 1000
        self.joins: dict[Token, KafkaError | None] = {}
        """The answers to requests that add partitions, in the order in which they were given."""
        self._last_token = 1
        self.shard = self._new()
        self._due: dict[Any, int] = {}

    def _new(self) -> TransactionShard:
        return TransactionShard(self.settings, lambda: self.level)

    def put(self, record: TransactionRecord) -> None:
        """Add a record that no request has caused."""
        self._apply(Effects([record]))

    def init(
        self, name: str, timeout_ms: int = 60_000, expected: tuple[int, int] | None = None
    ) -> ProducerAnswer:
        request = Initialization(name, timeout_ms, ProducerIdentity(*expected) if expected else None)
        return self._with_id(lambda new: self.shard.init_producer(Token(1), request, new, self.now_ms))

    def add(
        self, name: str, producer: tuple[int, int], partitions: Iterable[tuple[str, int]], version: int = 0
    ) -> bool:
        """Add partitions. Returns whether the request was answered. If not, it waits for the end of the last
        transaction."""
        wanted = [TopicPartition(*each) for each in partitions]
        identity = ProducerIdentity(*producer)
        self._last_token += 1
        joining = Joining(name, identity, wanted, version)
        token = Token(self._last_token)
        self._apply(self.shard.add_partitions(token, joining, self.now_ms))
        error = self.joins.get(token)
        if error is not None:
            raise error
        return token in self.joins

    def end(
        self, name: str, producer: tuple[int, int], *, committed: bool, version: int = 0
    ) -> ProducerAnswer:
        request = Ending(name, ProducerIdentity(*producer), committed, version)
        return self._with_id(lambda new: self.shard.end(Token(1), request, new, self.now_ms))

    def complete(self) -> int:
        """Write the markers of all prepared transactions. Returns their number."""
        unfinished = self.shard.unfinished()
        for ended in unfinished:
            self._apply(self.shard.complete(Token(1), ended, self.now_ms))
        return len(unfinished)

    def wait(self, ms: int) -> None:
        """Move the clock forward. Timers that are due fire in order."""
        until = self.now_ms + ms
        while self._due and (soonest := min(self._due.items(), key=lambda each: each[1]))[1] <= until:
            key, due = soonest
            del self._due[key]
            self.now_ms = due
            self._apply(self.shard.on_timer(key, self.now_ms))
        self.now_ms = until

    def restart(self) -> None:
        """Replay the log into a new shard, as another node does when it loads the log."""
        self.shard = self._new()
        self._due.clear()
        codec = TransactionCodec()
        for offset, (key, value) in enumerate(self.log):
            record = codec.decode(key, value)
            assert record is not None
            self.shard.replay(offset, record, PLAIN)
        self._apply(self.shard.on_loaded(self.now_ms))

    def _with_id(self, operation: Callable[[int | None], Effects[TransactionRecord]]) -> ProducerAnswer:
        try:
            answer = self._apply(operation(None))
        except NewProducerIdNeededError:
            self.next_id += 1
            answer = self._apply(operation(self.next_id))
        assert isinstance(answer, ProducerAnswer)
        return answer

    def _apply(self, effects: Effects[TransactionRecord]) -> Any:
        codec = TransactionCodec()
        for record in effects.records:
            self.log.append(codec.encode(record))
            self.shard.replay(len(self.log) - 1, record, effects.kind)
            self.fresh.append(record)
        for change in effects.timers:
            if isinstance(change, SetTimer):
                self._due[change.key] = self.now_ms + change.after_ms
            else:
                self._due.pop(change.key, None)
        self.joins |= {reply.token: reply.response for reply in effects.replies if reply.token > 1}
        return effects.replies[0].response if effects.replies else None
