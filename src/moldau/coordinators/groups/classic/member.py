"""One member of a classic group. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, field

from moldau.coordinators.effects import Token


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """The connection of a member, as its group keeps it."""

    client_id: str = ""
    host: str = ""
    """In Java's form, ``/127.0.0.1``."""


@dataclass(slots=True)
class Member:
    """A member and what it waits for."""

    member_id: str
    instance_id: str | None
    """``group.instance.id`` of a static member (KIP-345)."""
    client: ClientFacts
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """``(name, metadata)`` of what the member supports, in the order it prefers."""
    assignment: bytes = b""
    is_new: bool = False
    """It has not yet been answered: nobody but it knows its id, so it cannot send heartbeats."""
    awaiting_join: Token | None = field(default=None)
    awaiting_sync: Token | None = field(default=None)

    @property
    def protocol_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.protocols)

    @property
    def excused_from_heartbeat(self) -> bool:
        """It waits for us, so its silence is no sign of death. Not so while it is new: its client may
        have gone and come again under another id."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """The member's metadata for a protocol; raises ``KeyError`` when it does not support the protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(protocol_name)

    def vote(self, candidates: Collection[str]) -> str:
        """The first of its protocols that is a candidate."""
        return next(name for name, _ in self.protocols if name in candidates)
