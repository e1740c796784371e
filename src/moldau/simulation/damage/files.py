"""Copies and damages the files of a stopped node. All files are copied. The seed chooses a few files, which
are damaged."""

import posixpath
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.simulation.world.disks.disk import MountedDisk
from moldau.simulation.world.disks.lost_files import DATA
from moldau.simulation.world.host import Host
from moldau.simulation.world.process import Process

FLIPPED_BYTES_MAX: Final = 8
GARBAGE_BYTES_MAX: Final = 200
TIME_ENTRY_BYTES: Final = 12


class Way(Enum):
    """The way in which a file is damaged."""

    FLIPPED = "flipped"
    TRUNCATED = "truncated"
    REMOVED = "removed"
    OLDER = "older copy"
    SIBLING = "replaced by a sibling"
    GARBAGE = "garbage"
    APPENDED = "garbage appended"
    FOLDER_REMOVED = "folder removed"


@dataclass(frozen=True, slots=True)
class Copy:
    """All files and folders below the data folder, copied at the same moment."""

    files: dict[str, bytes]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileDamage:
    """A file or folder that was damaged."""

    path: str
    way: Way
    what: str
    """A description of the damage, for people who read a history."""

    @property
    def folder(self) -> str:
        """The folder of the file's partition. For files outside the partitions' folders, it is the data
        folder."""
        below = self.path.removeprefix(f"{DATA}/").partition("/")
        return f"{DATA}/{below[0]}" if below[1] or self.way is Way.FOLDER_REMOVED else DATA

    def __str__(self) -> str:
        return f"{self.path} {self.way.value} {self.what}".rstrip()


def kind_of(path: str) -> str:
    """The kind of a file. It consists of the file's topic (or folder) and its name without offsets and
    ids.
    """
    folder, name = posixpath.split(path.removeprefix(f"{DATA}/"))
    topic = folder.rpartition("-")[0] if folder[-1:].isdigit() else folder
    if "." in name and name[0].isdigit():
        name = "." + name.partition(".")[2]
    return f"{topic}/{name}"


def _has_witnesses(path: str, stem: str, copy: Copy) -> bool:
    """Whether other files can show that this log file was replaced by the log file of another partition. This
    is the case if the log file is not the last one of its folder, and its time index has several entries."""
    folder = posixpath.dirname(path)
    is_last = path == max(
        each for each in copy.files if each.startswith(f"{folder}/") and each.endswith(".log")
    )
    return not is_last and len(copy.files.get(f"{stem}.timeindex", b"")) >= 2 * TIME_ENTRY_BYTES


def siblings_of(path: str, copy: Copy, *, trusts_indexes: bool) -> list[str]:
    """Return the files that an operator might restore by mistake instead of this file. They are files with
    the same name in other folders, and files of the same folder with the same suffix.

    If the indexes of a log file cannot show that the file was replaced, no files are returned, because no
    check could detect the replacement.
    """
    folder, name = posixpath.split(path)
    stem, suffix = posixpath.splitext(path)
    is_state = posixpath.basename(folder).startswith("__")
    if suffix == ".log" and not is_state and not (trusts_indexes and _has_witnesses(path, stem, copy)):
        return []
    return [
        other
        for other in sorted(copy.files)
        if copy.files[other] != copy.files[path]
        and (
            posixpath.basename(other) == name
            or (suffix and name[0].isdigit() and other.startswith(f"{folder}/") and other.endswith(suffix))
        )
    ]


def copy_of(host: Host) -> Copy:
    """Copy all files and folders of a host. The host must run no program."""
    disk = _operator(host)
    files: dict[str, bytes] = {}
    folders: list[str] = []

    def walk(folder: str) -> None:
        for name in disk.list(folder):
            path = f"{folder}/{name}"
            if disk.is_dir(path):
                folders.append(path)
                walk(path)
            else:
                files[path] = disk.read(path)

    walk(DATA)
    return Copy(files, tuple(folders))


def restore(host: Host, copy: Copy) -> None:
    """Restore everything, durably. Files that are not in the copy are removed."""
    disk = _operator(host)
    for name in disk.list(DATA):
        path = f"{DATA}/{name}"
        if disk.is_dir(path):
            disk.remove_tree(path)
        else:
            disk.remove(path)
    for folder in copy.folders:
        disk.make_dirs(folder)
    for path, content in copy.files.items():
        _write(disk, path, content)
    for folder in (DATA, *copy.folders):
        disk.sync_dir(folder)


def damage(
    host: Host,
    chance: random.Random,
    copy: Copy,
    older: Sequence[Copy],
    *,
    kinds: str,
    count: int,
    trusts_indexes: bool,
) -> list[FileDamage]:
    """Damage up to ``count`` files. No two of them are in the same folder or of the same kind. All kinds are
    equally likely.

    ``older`` are copies from earlier moments. ``kinds`` is a text that the names of the chosen kinds contain.
    ``trusts_indexes`` means that all written bytes exist, so the indexes show whether a log file was
    replaced.
    """
    disk = _operator(host)
    done: list[FileDamage] = []
    paths: dict[str, list[str]] = defaultdict(list)
    for path in sorted(copy.files):
        if kinds in kind_of(path):
            paths[kind_of(path)].append(path)
    for kind in chance.sample(sorted(paths), min(count, len(paths))):
        path = chance.choice(paths[kind])
        if any(path.startswith(each.folder) for each in done if each.folder != DATA):
            continue  # another file of this folder is already damaged
        done.append(_damage(disk, chance, path, copy, older, trusts_indexes=trusts_indexes))
    return done


def _damage(
    disk: MountedDisk,
    chance: random.Random,
    path: str,
    copy: Copy,
    older: Sequence[Copy],
    *,
    trusts_indexes: bool,
) -> FileDamage:
    content = copy.files[path]
    former = [found for each in older if (found := each.files.get(path, content)) != content]
    folder = posixpath.dirname(path)
    siblings = siblings_of(path, copy, trusts_indexes=trusts_indexes)
    ways = [Way.REMOVED, Way.GARBAGE, Way.APPENDED]
    ways += [Way.FLIPPED, Way.FLIPPED, Way.TRUNCATED] if content else []
    ways += [Way.OLDER, Way.OLDER] if former else []
    ways += [Way.SIBLING, Way.SIBLING] if siblings else []
    ways += [Way.FOLDER_REMOVED] if folder != DATA else []
    way = chance.choice(ways)
    what = ""
    match way:
        case Way.FLIPPED:
            count = min(chance.choice((1, FLIPPED_BYTES_MAX)), len(content))
            start = chance.randrange(len(content) - count + 1)
            changed = bytearray(content)
            for position in range(start, start + count):
                changed[position] ^= chance.randint(1, 255)
            _write(disk, path, bytes(changed))
            what = f"{count} bytes from {start} of {len(content)}"
        case Way.TRUNCATED:
            size = chance.choice((0, chance.randrange(len(content))))
            _write(disk, path, content[:size])
            what = f"to {size} of {len(content)} bytes"
        case Way.GARBAGE:
            _write(disk, path, chance.randbytes(chance.randint(1, GARBAGE_BYTES_MAX)))
        case Way.APPENDED:
            _write(disk, path, content + chance.randbytes(chance.randint(1, GARBAGE_BYTES_MAX)))
        case Way.OLDER:
            _write(disk, path, chance.choice(former))
        case Way.SIBLING:
            sibling = chance.choice(siblings)
            _write(disk, path, copy.files[sibling])
            what = f"{sibling}"
        case Way.REMOVED:
            disk.remove(path)
            disk.sync_dir(folder)
        case Way.FOLDER_REMOVED:
            disk.remove_tree(folder)
            disk.sync_dir(posixpath.dirname(folder))
            return FileDamage(folder, way, "")
    return FileDamage(path, way, what)


def _write(disk: MountedDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [content])
    file.sync()
    file.close()


def _operator(host: Host) -> MountedDisk:
    return host.disk.mount(Process("operator"))
