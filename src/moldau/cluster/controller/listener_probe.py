"""A probe that checks whether a process listens on an address."""

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Any, Final

PROBE_TIMEOUT_S: Final = 1.0


class TcpListenerProbe:
    """Opens TCP connections on the running event loop, and closes them at once."""

    def __init__(self, own_hosts: Collection[str]) -> None:
        """``own_hosts`` are the hosts under which other nodes reach this node. If none of them is a loopback
        address, this node must not probe a loopback address: the other node that has registered it may run on
        another machine, but a connection would reach this machine."""
        self._own_hosts = frozenset(own_hosts)
        self._is_on_loopback = any(_is_loopback(host) for host in own_hosts)

    async def is_refused(self, host: str, port: int) -> bool:
        """Whether every address of this host refuses a connection to the port. Without a response within
        ``PROBE_TIMEOUT_S``, returns False."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                addresses = await self._addresses(host, port)
                for address in addresses:
                    if not await _is_refused(address, port):
                        return False
        except (OSError, TimeoutError, ValueError):
            return False
        return bool(addresses)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The IP addresses of a host. The list is empty if one of them is a loopback address and the host may
        be another machine, because a connection to a loopback address always reaches this machine."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        is_here = self._is_on_loopback or host in self._own_hosts
        if not is_here and any(map(_is_loopback, addresses)):
            return []
        return addresses


async def _is_refused(address: str, port: int) -> bool:
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, address, port)
    except ConnectionRefusedError:
        return True
    transport.abort()
    return False


def _is_loopback(host: Any) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
