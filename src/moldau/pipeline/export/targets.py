"""The destination of a task's files: a local folder, or any place that a table's catalog supports."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io import load_file_io

from moldau.client.errors import ToolError
from moldau.runtime.files.folders import DurableFolders
from moldau.runtime.files.local_disk import LocalDisk

_LOCAL: Final = "file://"
_TABLES: Final = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Names of files and folders that show that a folder is a table of another format."""
_NOT_WRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A folder by its URI, and the properties with which pyiceberg accesses it. The object is sent to the
    tasks."""

    uri: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """Path of a local folder; ``None`` if the folder is at another place."""
        return self.uri.removeprefix(_LOCAL) if self.uri.startswith((_LOCAL, "/")) else None

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file for writing. The file is durable after the ``with`` block."""
        if self.path is not None:
            make_folder(self.path)
            with create_file(os.path.join(self.path, name)) as file:
                yield file
            sync_folder(self.path)
            return
        with self._io().new_output(self.locate(name)).create(overwrite=True) as file:
            yield file

    def open(self, location: str) -> Any:
        """Open a file of the folder for reading."""
        if location.startswith((_LOCAL, "/")):
            return pa.memory_map(location.removeprefix(_LOCAL))
        return self._io().new_input(location).open()

    def locate(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def _io(self) -> Any:
        try:
            return load_file_io(dict(self.properties), self.uri)
        except (ValueError, ModuleNotFoundError) as error:
            raise ToolError(f"files cannot be written to {self.uri}: {error}") from error


def foreign_content(folder: str) -> str | None:
    """Describe files in a local folder that would be mixed with the files of a new export. The result is
    ``None`` if there are no such files."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name, table in _TABLES.items():
        if name in names:
            return table
    if any(name.endswith(".parquet") or ("=" in name and not name.startswith(("_", "."))) for name in names):
        return "Parquet files that no export has written, or whose folder _moldau is gone"
    return None


@contextlib.contextmanager
def writing_to(place: str) -> Iterator[None]:
    """Convert an error about a full or read-only disk, or about missing permissions, to one line that names
    the place."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise ToolError(f"{place} cannot be written: {os.strerror(error.errno)}") from error


@contextlib.contextmanager
def create_file(path: str) -> Iterator[Any]:
    """Create a local file. The file is durable after the ``with`` block. Raises ``FileExistsError``."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    with pa.OSFile(path, "wb") as file:
        yield file
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(attempt: str, final: str) -> bool:
    """Give a file its final name by a hard link, unless another file has this name. Returns ``True`` if the
    file got the name. The name is then durable."""
    try:
        os.link(attempt, final)
    except FileExistsError:
        return False
    sync_folder(os.path.dirname(final))
    return True


def sync_folder(folder: str) -> None:
    LocalDisk().sync_dir(folder)


def make_folder(folder: str) -> None:
    """Create a local folder (an absolute path) and its parents, durably."""
    DurableFolders(LocalDisk(), folder).make(folder)
