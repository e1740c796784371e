"""Whether this broker has already used its object store with its present address.

If it has, an error of the store at the start is probably temporary, and the broker starts without the store.
Otherwise the error ends the start, because a mistake in the configuration is more likely. A broker need not
have any log of a diskless topic: it may be a gateway, or the coordinators may be on other brokers.
"""

import hashlib
import logging
from typing import Final

from moldau.objects import StorageSettings
from moldau.runtime import Disk

FILE_NAME: Final = "diskless-store"
_SECRET_WORDS: Final = ("key", "secret", "token", "password", "credential")
_logger: Final = logging.getLogger(__name__)


class KnownStore:
    """A file in the folder of the metadata log. It has the SHA-256 of the cluster's id, and of the store's
    class, URL and options without secrets."""

    def __init__(self, disk: Disk, folder: str, cluster_id: str, settings: StorageSettings) -> None:
        self._disk = disk
        self._path = f"{folder}/{FILE_NAME}"
        named = [cluster_id, settings.class_name or "", settings.url]
        named += [
            f"{name}={value}"
            for name, value in sorted(settings.options.items())
            if not any(word in name for word in _SECRET_WORDS)
        ]
        digest = hashlib.sha256("\n".join(named).encode()).hexdigest()
        self._content = f"version=0\nsha256={digest}\n".encode()

    def is_known(self, *, otherwise: bool = False) -> bool:
        """Whether the broker has used a store of this address for this cluster. If there is no file, the
        result is ``otherwise``: earlier versions did not write the file."""
        try:
            return self._disk.read(self._path) == self._content
        except FileNotFoundError:
            return otherwise
        except OSError:
            return False

    def remember(self) -> None:
        """Called when the store has been used. If the file cannot be written, this has only an effect if the
        store is down at the next start."""
        if self.is_known():
            return
        try:
            self._disk.write_atomically(self._path, self._content)
        except OSError as error:
            _logger.warning("%s cannot be written: %s", self._path, error)
