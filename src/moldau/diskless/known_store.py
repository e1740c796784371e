"""Whether this broker has already used its object store with its present address.

If it has, an error of the store at the start is probably temporary, and the broker starts without the store.
Otherwise the error ends the start, because a mistake in the configuration is more likely. A broker need not
have any log of a diskless topic: it may be a gateway, or the coordinators may be on other brokers.
"""

import hashlib
from typing import Final

from moldau.objects import StorageSettings
from moldau.runtime import Disk

FILE_NAME: Final = "diskless-store"


class KnownStore:
    """A file in the folder of the metadata log. It has the SHA-256 of the class and the URL of the store."""

    def __init__(self, disk: Disk, folder: str, settings: StorageSettings) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE_NAME}"
        named = f"{settings.class_name or ''} {settings.url}"
        self._content = b"version=0\nsha256=%s\n" % hashlib.sha256(named.encode()).hexdigest().encode()

    def is_known(self) -> bool:
        """Whether the broker has used a store of this address."""
        try:
            return self._disk.read(self._path) == self._content
        except OSError:
            return False

    def remember(self) -> None:
        """Called when the store has been used. Raises ``OSError``."""
        if not self.is_known():
            self._disk.write_atomically(self._path, self._content)
