"""The history: operations of clients and their results, in the order of virtual time."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode


class Outcome(Enum):
    """The outcome of a batch, as its producer knows it."""

    OK = "ok"
    FAILED = "failed"
    """The broker refused the batch permanently. The batch must never be read."""
    UNKNOWN = "unknown"
    """The batch may have been stored or not, or it may be stored later."""


GIVEN_UP_S = 60.0


@dataclass(slots=True)
class Production:
    """A batch of an idempotent or plain producer. ``base_offset`` is -1 until the batch is acknowledged."""

    producer: str
    partition: TopicPartition
    first_number: int
    values: tuple[bytes, ...]
    idempotent: bool
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1
    refused_s: float = -1.0
    """The time of the first OUT_OF_ORDER_SEQUENCE_NUMBER for the batch."""

    def is_given_up(self, error: ErrorCode, now_s: float) -> bool:
        """Called for each retriable error. A batch that stays out of order may be older than the batches that
        the broker remembers. After a minute, the producer regards it as stored. The check shows whether this
        is true."""
        if error is not ErrorCode.out_of_order_sequence_number:
            return False
        if self.refused_s < 0:
            self.refused_s = now_s
        return now_s - self.refused_s > GIVEN_UP_S


class Observation(NamedTuple):
    """A record that a consumer read."""

    consumer: str
    partition: TopicPartition
    offset: int
    value: bytes


@dataclass(slots=True)
class History:
    """Everything that clients reported. ``now_s`` is the world's time."""

    now_s: Callable[[], float]
    productions: list[Production] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    deletions: dict[TopicPartition, int] = field(default_factory=dict)
    """For each partition, the highest first offset in a response to DeleteRecords."""
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    producer_ids: dict[int, str] = field(default_factory=dict)
    """The first client that got each producer id."""

    def _line(self, text: str) -> None:
        self.lines.append(f"{self.now_s():.6f} {text}")

    def identified(self, producer: str, producer_id: int) -> None:
        """Add the producer id that a client without a transactional id got. No other client may get this id,
        because the broker would treat the batches of a second client as repetitions."""
        owner = self.producer_ids.setdefault(producer_id, producer)
        if owner != producer:
            self.violate(f"producer id {producer_id} of {owner} is given to {producer}, too")

    def invoke(self, production: Production) -> None:
        """Add a batch that a producer sends for the first time."""
        self.productions.append(production)
        self._line(
            f"{production.producer} sends {production.first_number}+{len(production.values)} "
            f"to {production.partition.topic}-{production.partition.partition}"
        )

    def end(self, production: Production, outcome: Outcome, base_offset: int = -1, reason: str = "") -> None:
        """Add the outcome of a batch, which the producer knows now."""
        production.outcome = outcome
        production.base_offset = base_offset
        what = f"{production.producer} {outcome.value} {production.first_number} at {base_offset}"
        self._line(f"{what} {reason}".rstrip())

    def observe(self, observation: Observation) -> None:
        """Add a record that a consumer read."""
        self.observations.append(observation)
        self._line(
            f"{observation.consumer} reads {observation.partition.partition}:{observation.offset} "
            f"{observation.value.decode(errors='replace')}"
        )

    def deleted(self, partition: TopicPartition, first_offset: int) -> None:
        """Add the new first offset of a partition, which an administrator got."""
        self.deletions[partition] = max(first_offset, self.deletions.get(partition, 0))

    def note(self, text: str) -> None:
        """Add an event of the world, for people who read the history."""
        self.notes.append(text)
        self._line("* " + text)

    def violate(self, text: str) -> None:
        """Add a violation that a client observed directly."""
        self.violations.append(text)
        self._line("! " + text)

    def digest(self) -> str:
        """A digest of this history. Equal digests mean equal histories."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
