"""The kinds of files that can be dumped. Add a new kind here."""

from pathlib import Path
from typing import Final

from moldau.cli.dump import indexes, remote_segments, segments, text_files, wal_objects
from moldau.cli.dump.file_kind import FileKind

KINDS: Final[tuple[FileKind, ...]] = (
    segments.SEGMENT,
    indexes.OFFSET_INDEX,
    indexes.TIME_INDEX,
    indexes.TRANSACTION_INDEX,
    indexes.PRODUCER_SNAPSHOT,
    segments.METADATA_SNAPSHOT,
    text_files.OFFSET_CHECKPOINT,
    text_files.LEADER_EPOCH_CHECKPOINT,
    text_files.PROPERTIES,
    text_files.JSON_STATE,
    wal_objects.WAL_OBJECT,
    remote_segments.REMOTE_INDEXES,
)

PASSING_SUFFIXES: Final = (".deleted", ".cleaned", ".swap", ".part")
"""Suffixes of files that are being written or deleted."""


def kind_of(path: Path) -> FileKind | None:
    """The kind of a file, by its name. It is ``None`` for an unknown kind."""
    name = path.name
    for suffix in PASSING_SUFFIXES:
        name = name.removesuffix(suffix)
    return next((kind for kind in KINDS if kind.matches(name)), None)


def dumpable(paths: list[Path]) -> list[Path]:
    """The files that must be dumped. For a folder, these are the files of known kinds in the folder and its
    subfolders."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(each for each in path.rglob("*") if each.is_file() and kind_of(each) is not None)
        else:
            found.append(path)
    return found
