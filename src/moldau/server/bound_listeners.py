"""The bound addresses of a node's listeners. A listener stores its address here when it opens. The code that
advertises the listener reads the address here."""

from typing import Final

from moldau.server.identity import Address

PAGES: Final = "metrics.listener"
"""The listener of the pages for operators. It has no name, so it is identified by the key that configures it.
"""


class BoundListeners:
    """The bound addresses of a node's listeners, by the listener's name. A listener has an address after it
    has opened."""

    def __init__(self) -> None:
        self._addresses: dict[str, Address] = {}

    def note(self, name: str, host: str, port: int) -> None:
        """Store the address of a listener that was just opened. ``host`` is the configured host; it is empty
        if the listener is bound to all interfaces."""
        self._addresses[name] = Address(host or "127.0.0.1", port)

    def find(self, name: str) -> Address | None:
        """Return the bound address, or None while the listener is not open."""
        return self._addresses.get(name)

    def __getitem__(self, name: str) -> Address:
        """The address of an open listener."""
        return self._addresses[name]
