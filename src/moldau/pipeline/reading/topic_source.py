"""The topic that a task reads, and the place of its records."""

from collections.abc import Mapping
from dataclasses import dataclass

from moldau.pipeline.reading.tier_segments import Tier
from moldau.pipeline.reading.wal_access import WalAccess

__all__ = ["Bounds", "TopicSource"]


@dataclass(frozen=True, slots=True)
class TopicSource:
    """The information that a task needs in order to read a topic. It is sent to the workers."""

    bootstrap: str
    topic: str
    topic_id: str
    committed_only: bool = True
    may_lose: bool = False
    """If set, records that were deleted before they were read are skipped. Otherwise the read fails."""
    timeout_s: float = 30.0
    """Timeout of a task that makes no progress."""
    wal: WalAccess | None = None
    """Access to the topic's objects; ``None`` if the topic is read through the brokers."""
    tier: Tier | None = None
    """Place of the topic's remote segments; ``None`` if their records are read through the brokers."""
    rack: str = ""
    """Rack of the task. A read through brokers uses a broker of this rack, if the leader of the partition
    names one (KIP-392)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The state of a topic at one moment: its id, and the first and the end offset of each partition."""

    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
