"""One member of a classic group. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

from moldau.coordinators.effects import Token


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The client of a member. The record of a group contains it."""

    client_id: str = ""
    host: str = ""
    """The address in Java's form, ``/127.0.0.1``."""


@dataclass(slots=True)
class HeldMetadata:
    """The total size in bytes of the metadata of all members, over all groups of a shard."""

    size_bytes: int = 0


@dataclass(slots=True)
class Member:
    """A member and its waiting requests."""

    member_id: str
    instance_id: str | None
    """``group.instance.id`` of a static member (KIP-345)."""
    client: ClientFacts
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """``(name, metadata)`` of the supported protocols, in the member's order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member has not received a response to its first join yet. Such a member sends no
    heartbeats, and may not know its id."""
    awaiting_join: Token | None = field(default=None)
    awaiting_sync: Token | None = field(default=None)

    @property
    def protocol_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.protocols)

    @property
    def excused_from_heartbeat(self) -> bool:
        """Whether the member's session continues without heartbeats, because a join or sync request of the
        member is waiting at this coordinator. For a new member the result is False, because its client may
        have given up and joined again with another id.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for a protocol. Raises ``KeyError`` if the member does not support the
        protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    @property
    def metadata_bytes(self) -> int:
        """Size of the member's metadata for all protocols, including their names."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def vote(self, candidates: Collection[str]) -> str:
        """Return the candidate that this member prefers. It is the first candidate in the member's list of
        protocols."""
        return next(name for name, _ in self.protocols if name in candidates)
