"""Makes the metadata of tables in local folders durable, so that they survive a crash of the machine.

A catalog in SQLite is durable after a commit, but pyiceberg does not sync the files that the catalog refers
to. A loss of power soon after a commit could destroy the table. Therefore the catalog of a local folder names
:class:`DurableFileIO` in its property ``py-io-impl``.
"""

import io
import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem

from moldau.pipeline.export.targets import make_folder, sync_folder


class _SyncedFile(io.BufferedWriter):
    """A file whose content and name are durable when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self._folder = os.path.dirname(path)

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                os.fsync(self.fileno())
            finally:
                super().close()
            sync_folder(self._folder)


class _SyncedFileSystem(PyArrowLocalFileSystem):
    """A file system that syncs the files that it writes. Arrow's own file system does not sync files, so a
    crash may lose them."""

    def open_output_stream(self, path: str, *_: Any, **__: Any) -> _SyncedFile:
        make_folder(os.path.dirname(path))
        return _SyncedFile(path)


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's access to files. A file in a local folder is durable as soon as it is closed."""

    def _initialize_local_fs(self) -> Any:
        return _SyncedFileSystem()
