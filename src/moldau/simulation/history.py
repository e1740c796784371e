"""The history: operations of clients and their results, in the order of virtual time."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class PartitionName(NamedTuple):
    """A partition of a topic, by name."""

    topic: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here


class Outcome(Enum):
    """Outcome of a batch, as its producer knows it."""

    OK = "ok"
    FAILED = "failed"
    """The broker refused it permanently: it must never be read."""
    UNKNOWN = "unknown"
    """It may have been stored, or not, or may be stored later."""


@dataclass(slots=True)
class Production:
    """One batch of an idempotent or plain producer. ``base_offset`` is -1 until it is acknowledged."""

    producer: str
    partition: PartitionName
    first_number: int
    values: tuple[bytes, ...]
    idempotent: bool
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1


class Observation(NamedTuple):
    """A record that a consumer read."""

    consumer: str
    partition: PartitionName
    offset: int
    value: bytes


@dataclass(slots=True)
class History:
    """Everything that clients reported. ``now_s`` is the world's time."""

    now_s: Callable[[], float]
    productions: list[Production] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    deletions: dict[PartitionName, int] = field(default_factory=dict)
    """The highest first offset in an answer to a deletion of records."""
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def _line(self, text: str) -> None:
        self.lines.append(f"{self.now_s():.6f} {text}")

    def invoke(self, production: Production) -> None:
        """A producer sends a batch for the first time."""
        self.productions.append(production)
        self._line(
            f"{production.producer} sends {production.first_number}+{len(production.values)} "
            f"to {production.partition.topic}-{production.partition.index}"
        )

    def end(self, production: Production, outcome: Outcome, base_offset: int = -1, reason: str = "") -> None:
        """The producer knows the outcome of a batch."""
        production.outcome = outcome
        production.base_offset = base_offset
        what = f"{production.producer} {outcome.value} {production.first_number} at {base_offset}"
        self._line(f"{what} {reason}".rstrip())

    def observe(self, observation: Observation) -> None:
        """A consumer read a record."""
        self.observations.append(observation)
        self._line(
            f"{observation.consumer} reads {observation.partition.index}:{observation.offset} "
            f"{observation.value.decode(errors='replace')}"
        )

    def deleted(self, partition: PartitionName, first_offset: int) -> None:
        """An administrator got the new first offset of a partition."""
        self.deletions[partition] = max(first_offset, self.deletions.get(partition, 0))

    def note(self, text: str) -> None:
        """An event of the world, for readers of the history."""
        self.notes.append(text)
        self._line("* " + text)

    def violate(self, text: str) -> None:
        """A client observed a violation directly."""
        self.violations.append(text)
        self._line("! " + text)

    def digest(self) -> str:
        """Names this history: equal only for equal histories."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
