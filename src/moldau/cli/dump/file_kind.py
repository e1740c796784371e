"""A kind of file that can be dumped, with the input and the output of its dump."""

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

DumpRow: TypeAlias = dict[str, Any]
"""A line of output. It has names and values in order. A row with a ``problem`` describes a fault."""

PROBLEM = "problem"
"""Name of the field that marks a damaged file."""
READ_BYTES_MAX = 128 * 1024 * 1024
DETAIL = "| "
"""Prefix of a row's type. It shows that the row belongs to the row above it."""


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """An open file, and the requested level of detail."""

    path: Path
    """The file's path. The name of its folder determines the topic of the records."""
    content: memoryview
    deep: bool = False
    """Whether to decode batches and show their records."""
    decoder: str | None = None
    """The name of the decoder of keys and values. When it is ``None``, the topic determines the decoder."""

    @property
    def topic(self) -> str:
        """The topic of the folder that contains the file. It is empty when the folder does not belong to a
        partition."""
        topic, dash, number = self.path.absolute().parent.name.rpartition("-")
        return topic if dash and number.isdigit() else ""

    @property
    def base_offset(self) -> int:
        """The offset in the file's name. It is 0 when the name has no offset."""
        stem = self.path.name.partition(".")[0].partition("-")[0]
        return int(stem) if stem.isascii() and stem.isdigit() else 0


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: a name for messages, the file names of the kind, and the function that dumps such a
    file.

    ``dump`` raises ``ValueError``, ``KafkaError`` or an error of the storage when it cannot continue. For a
    fault after which it can continue, it yields a row with the field ``problem``.
    """

    title: str
    matches: Callable[[str], bool]
    dump: Callable[[DumpedFile], Iterable[DumpRow]]


def by_suffix(suffix: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(suffix)


def by_name(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


@contextmanager
def opened(path: Path, *, deep: bool, decoder: str | None) -> Iterator[DumpedFile]:
    """Open a file. A small file is read, and a large file is mapped into memory. Raises ``OSError``."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= READ_BYTES_MAX:
            # A small file is not mapped, because a running node may truncate it. A read beyond the end of a
            # mapped file crashes the process.
            content = memoryview(file.read())
        else:
            content = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
        yield DumpedFile(path, content, deep, decoder)
