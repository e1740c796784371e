"""A disk in memory that can be full, fail, and lose unsynced bytes."""

import errno
import random
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moldau.runtime import DiskError, DiskSpace
from moldau.runtime.buffers import Buffer


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.dirty: list[tuple[int, int]] = []
        """Ranges that the next sync writes; a failed sync drops them."""

    def on_disk(self) -> bytes:
        """The bytes that survive any loss of power."""
        return self.synced

    def sync(self) -> None:
        synced = bytearray(self.synced[: len(self.data)].ljust(len(self.data), b"\0"))
        for start, end in self.dirty:
            synced[start:end] = self.data[start:end]
        self.synced, self.dirty = bytes(synced), []


class MemoryFile:
    def __init__(self, disk: "MemoryDisk", path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.data)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        content = b"".join(buffers)
        data = self._inode.data
        room = self._disk.take_room(len(content))
        data.extend(bytes(max(0, position - len(data))))
        data[position : position + room] = content[:room]
        self._inode.dirty.append((position, position + room))
        if room < len(content):
            raise DiskError(28, "No space left on device", self.path)
        return len(content)

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._inode.data[position : position + size])

    def view(self, position: int, size: int) -> memoryview:
        content = self.read_at(position, size)
        assert len(content) == size, "a view past the end"
        return memoryview(content)

    def view_loaded(self, position: int, size: int) -> memoryview:
        return self.view(position, size)

    def truncate(self, size: int) -> None:
        self._disk.check()
        data = self._inode.data
        del data[size:]
        data.extend(bytes(size - len(data)))

    def sync(self) -> None:
        try:
            self._disk.check_sync(self.path)
        except DiskError:
            self._inode.dirty.clear()
            raise
        self._inode.sync()

    def is_cached(self, position: int, size: int) -> bool:
        return True

    def load(self, position: int, size: int) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryLock:
    def __init__(self, disk: "MemoryDisk", path: str) -> None:
        self._disk, self._path = disk, path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """Implements the Disk port. ``room_bytes`` is the remaining space."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.dirs: set[str] = {"/"}
        self.locks: set[str] = set()
        self.room_bytes: int | None = None
        self.failing = False
        self.failing_syncs = False
        self.written: list[str] = []
        """The files that were written as a whole, in order."""

    def take_room(self, wanted: int) -> int:
        self.check()
        if self.room_bytes is None:
            return wanted
        taken = min(wanted, self.room_bytes)
        self.room_bytes -= taken
        return taken

    def check(self) -> None:
        if self.failing:
            raise DiskError(5, "Input/output error", "/")

    def check_sync(self, path: str) -> None:
        self.check()
        if self.failing_syncs:
            raise DiskError(5, "Input/output error", path)

    def _missing(self, path: str) -> NoReturn:
        raise FileNotFoundError(2, "No such file or directory", path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> MemoryFile:
        self.check()
        if path not in self.names:
            if not create:
                self._missing(path)
            self.names[path] = Inode()
        return MemoryFile(self, path, self.names[path])

    def read(self, path: str) -> bytes:
        return self.open(path).read_at(0, 1 << 40)

    def write_atomically(self, path: str, content: bytes) -> None:
        if self.take_room(len(content)) < len(content):
            raise DiskError(28, "No space left on device", path)
        self.written.append(path)
        inode = Inode()
        inode.data, inode.synced = bytearray(content), content
        self.names[path] = self.durable[path] = inode

    def write_all_atomically(self, contents: Mapping[str, bytes]) -> None:
        for path, content in contents.items():
            self.write_atomically(path, content)

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.dirs

    def size(self, path: str) -> int:
        return self.open(path).size()

    def modified_ms(self, path: str) -> int:
        return 0

    def list(self, path: str) -> list[str]:
        self.check()
        if path not in self.dirs:
            self._missing(path)
        found = {
            name[len(path) + 1 :].split("/")[0]
            for name in {*self.names, *self.dirs}
            if name.startswith(path + "/")
        }
        return sorted(found)

    def is_dir(self, path: str) -> bool:
        return path in self.dirs

    def make_dirs(self, path: str) -> None:
        self.check()
        while path and path not in self.dirs:
            self.dirs.add(path)
            path = path.rpartition("/")[0]

    def rename(self, source: str, target: str) -> None:
        self.check()
        if source in self.dirs:
            if self.list(target) if target in self.dirs else ():
                raise OSError(errno.ENOTEMPTY, "the folder is not empty", target)
            self.dirs = {_moved(name, source, target) for name in self.dirs}
            self.names = {_moved(name, source, target): inode for name, inode in self.names.items()}
            self.durable = {_moved(name, source, target): inode for name, inode in self.durable.items()}
        elif source in self.names:
            self.names[target] = self.names.pop(source)
        else:
            self._missing(source)

    def remove(self, path: str) -> None:
        self.check()
        self.names.pop(path, None)

    def remove_tree(self, path: str) -> None:
        for names in (self.names, self.durable):
            for name in [name for name in names if name.startswith(path + "/")]:
                del names[name]
        self.dirs = {name for name in self.dirs if name != path and not name.startswith(path + "/")}

    def sync_dir(self, path: str) -> None:
        self.check_sync(path)
        for name in [name for name in self.durable if name.rpartition("/")[0] == path]:
            if name not in self.names:
                del self.durable[name]
        for name, inode in self.names.items():
            if name.rpartition("/")[0] == path:
                self.durable[name] = inode

    def space(self, path: str) -> DiskSpace:
        self.list(path)
        return DiskSpace(1 << 40, 1 << 40 if self.room_bytes is None else self.room_bytes)

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise DiskError(11, "held by another process", path)
        self.locks.add(path)
        self.names.setdefault(path, Inode())
        return MemoryLock(self, path)

    def crash(self, chance: random.Random) -> None:
        """The machine loses power. File names and bytes that were not synced may be lost, torn or zero."""
        for path, inode in self.names.items():
            if chance.random() < 0.5:
                self.durable.setdefault(path, inode)
        self.names = dict(self.durable)
        self.locks.clear()
        for inode in {id(inode): inode for inode in self.names.values()}.values():
            if inode.data[: len(inode.synced)] != inode.synced:
                inode.data = bytearray(chance.choice([bytes(inode.synced), bytes(inode.data)]))
            else:
                cut = chance.randint(len(inode.synced), len(inode.data))
                zeros = chance.randint(0, cut - len(inode.synced))
                inode.data[cut - zeros : cut] = bytes(zeros)
                del inode.data[cut:]
            inode.synced = bytes(inode.data)


def _moved(name: str, source: str, target: str) -> str:
    return target + name[len(source) :] if name == source or name.startswith(source + "/") else name


class NothingKept(random.Random):
    """The chance of a disk that loses all unsynced writes."""

    def random(self) -> float:
        return 0.9

    def randint(self, a: int, b: int) -> int:
        return a

    def choice(self, seq: Any) -> Any:
        return seq[0]
