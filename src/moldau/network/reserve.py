"""Reserved connections. The protected listener accepts them even if a limit on connections is reached, so
that an operator can always reach the node.
"""

import ipaddress
from collections.abc import Container
from typing import Final

from moldau.network.connection import ServerConnection

QUIET_S: Final = 1.0
"""Time in seconds. A new connection may take a reserved place if the connection in this place has no pending
request and was idle for this time."""
WAITING_S: Final = 5.0
"""Time in seconds. It has the same meaning as :data:`QUIET_S`, but for a connection with a pending request,
and it is longer. This limit is needed because a pending request may be a fetch that waits for days.
"""
HELD_S: Final = 30.0
"""Time in seconds. A new connection may take a reserved place that another connection has had for this time,
even if the other connection is busy."""


def is_own_machine(peer_host: str, local_host: str) -> bool:
    """Whether a connection comes from the machine of the node."""
    if peer_host == local_host:
        return True
    try:
        address = ipaddress.ip_address(peer_host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class ReservedPlaces:
    """Reserves a place for one connection from the node's machine, and a place for one connection from
    elsewhere.

    Therefore an operator on the node's machine can always connect, even if clients on other machines use all
    other connections.
    """

    def __init__(self, accepted: Container[ServerConnection]) -> None:
        """``accepted`` contains the open connections. A place is free when its connection is not open."""
        self._accepted = accepted
        self._holders: dict[bool, tuple[ServerConnection, float]] = {}

    def assign(self, is_own: bool, connection: ServerConnection, now_s: float) -> ServerConnection | None:
        """Give ``connection`` a reserved place, unless a busy connection has this place. :meth:`has` returns
        whether ``connection`` got the place. With ``is_own``, it is the place for a connection from
        the node's machine; otherwise it is the place for a connection from elsewhere.

        Returns the connection that had the place before. The caller must close this connection.
        """
        holder = self._holder(is_own)
        if holder is not None and not _can_be_closed(*holder, now_s):
            return None
        self._holders[is_own] = (connection, now_s)
        return None if holder is None else holder[0]

    def has(self, is_own: bool, connection: ServerConnection) -> bool:
        """Whether ``connection`` has a reserved place. With ``is_own``, this is the place for a connection
        from the node's machine; otherwise it is the place for a connection from elsewhere."""
        return self._holders.get(is_own, (None,))[0] is connection

    def _holder(self, is_own: bool) -> tuple[ServerConnection, float] | None:
        holder = self._holders.get(is_own)
        if holder is None or holder[0] not in self._accepted or holder[0].is_closing:
            return None
        return holder


def _can_be_closed(connection: ServerConnection, since_s: float, now_s: float) -> bool:
    quiet_s = now_s - connection.last_active
    if now_s - since_s >= HELD_S:
        return True
    return quiet_s >= (QUIET_S if connection.has_no_pending_responses else WAITING_S)
