"""The Disk port of a simulated volume. It follows the rules of a real disk, and has injected faults and
losses of power."""

import errno
import os
import posixpath
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from moldau.runtime.buffers import Buffer
from moldau.runtime.files.disk import DiskError, DiskSpace, File, Lock
from moldau.simulation.world.disks.volume import FileNode, FolderNode, TreeNode, Volume
from moldau.simulation.world.process import Process

_PATHS_KEPT: Final = 4_096
"""Maximum number of paths in the cache of split paths. The cache is useful because a history uses each path
many times."""
UNLIMITED_BYTES = 1 << 40
"""Reported size of a disk that has no limit."""


@dataclass(slots=True)
class DiskFault:
    """An error for the next operations of one kind."""

    operation: str
    """The kind of the operations. It is one of ``read``, ``write``, ``sync``, ``open``, ``rename``,
    ``remove`` and ``sync_dir``."""
    error_number: int
    count: int = 1
    path_part: str = ""


class SimulatedDisk:
    """The disk of a host. Programs use it through :meth:`mount`. Faults are injected through ``faults``,
    ``failed_folders`` and ``capacity_bytes``."""

    def __init__(
        self, chance: random.Random, now_ms: Callable[[], int], trace: Callable[[bytes], None]
    ) -> None:
        self.chance = chance
        self.now_ms = now_ms
        self.trace = trace
        self.volume = Volume()
        self.faults: list[DiskFault] = []
        self.failed_folders: set[str] = set()
        """Folders whose disks have failed. All operations in these folders fail."""
        self.capacity_bytes: int | None = None
        self.error_count = 0
        self._is_cold: Callable[[], bool] = lambda: False

    def mount(self, process: Process) -> "MountedDisk":
        """Return the disk port for a process. After the process has ended, the port cannot be used."""
        return MountedDisk(self, process)

    def forgets(self, chance: random.Random, cold_chance: float) -> None:
        """Set the chance that bytes of a file are not in memory, so that a worker must load them for a
        reader."""
        if cold_chance:
            self._is_cold = lambda: chance.random() < cold_chance

    def is_cold(self) -> bool:
        """Whether the bytes of a range are not in memory."""
        return self._is_cold()

    def crash(self) -> None:
        """Apply a loss of the machine's power."""
        self.volume.crash(self.chance)
        self.faults.clear()
        self.trace(b"disk crash")

    def meet_fault(self, operation: str, path: str) -> int | None:
        """Return the error number of a fault that applies to this operation, or None."""
        for folder in self.failed_folders:
            if path == folder or path.startswith(folder + "/"):
                self.error_count += 1
                return errno.EIO
        for fault in self.faults:
            if fault.operation == operation and fault.path_part in path:
                fault.count -= 1
                if fault.count <= 0:
                    self.faults.remove(fault)
                self.error_count += 1
                return fault.error_number
        return None

    def room_bytes(self) -> int | None:
        """Return the number of bytes that can still be written; None if the disk has no limit."""
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - self.volume.used_bytes())


def _error(error_number: int, path: str) -> OSError:
    if error_number == errno.ENOENT:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return DiskError(error_number, os.strerror(error_number), path)


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: "MountedDisk", node: FileNode, path: str, read_only: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._read_only = read_only
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def _check(self, operation: str, *, writing: bool = False) -> FileNode:
        if self._closed or (writing and self._read_only):
            raise _error(errno.EBADF, self._path)
        self._disk.check(operation, self._path)
        return self._node

    def size(self) -> int:
        return len(self._check("size").data)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        if position < 0:
            raise _error(errno.EINVAL, self._path)
        content = b"".join(buffers)
        device = self._disk.device
        try:
            node = self._check("write", writing=True)
        except DiskError:
            if not self._closed and self._disk.process.alive and not self._read_only and content:
                # A write that fails may have written a part of its bytes.
                self._node.write(position, content[: device.chance.randrange(len(content))])
            raise
        room = device.room_bytes()
        if room is not None and position + len(content) - len(node.data) > room:
            fitting = max(0, len(node.data) + room - position)
            node.write(position, content[: device.chance.randint(0, fitting)])
            device.error_count += 1
            raise _error(errno.ENOSPC, self._path)
        node.write(position, content)
        node.modified_ms = device.now_ms()
        return len(content)

    def read_at(self, position: int, size: int) -> bytes:
        if position < 0:
            raise _error(errno.EINVAL, self._path)
        return bytes(self._check("read").data[position : position + size])

    def read_once(self, position: int, size: int) -> memoryview:
        return memoryview(self.read_at(position, size))

    def view(self, position: int, size: int) -> memoryview:
        content = self.read_at(position, size)
        if len(content) != size:
            raise DiskError(errno.EIO, f"read of {size} bytes at {position} past the end", self._path)
        return memoryview(content)

    def view_loaded(self, position: int, size: int) -> memoryview:
        return self.view(position, size)

    def truncate(self, size: int) -> None:
        if size < 0:
            raise _error(errno.EINVAL, self._path)
        node = self._check("write", writing=True)
        node.truncate(size)
        node.modified_ms = self._disk.device.now_ms()

    def sync(self) -> None:
        self._disk.process.note_sync(self._path)
        try:
            node = self._check("sync")
        except DiskError:
            if not self._closed and self._disk.process.alive:
                self._node.sync_failed(self._disk.device.chance)
            raise
        node.sync()
        self._disk.device.trace(b"sync %d %s" % (len(node.data), self._path.encode()))

    def fill(self, content: Buffer) -> None:
        self.write_at(0, [content])
        self.sync()
        self.forget_pages()

    def forget_pages(self, position: int = 0, size: int = 0) -> None:
        self._check("forget")

    def is_cached(self, position: int, size: int) -> bool:
        return not self._disk.device.is_cold()

    def load(self, position: int, size: int) -> None:
        self._check("read")

    def close(self) -> None:
        self._closed = True


class _SimulatedLock:
    def __init__(self, node: FileNode) -> None:
        self._node = node
        node.locked_by = self

    def close(self) -> None:
        if self._node.locked_by is self:
            self._node.locked_by = None


class MountedDisk:
    """A simulated disk, as one process uses it. Implements :class:`moldau.runtime.Disk`."""

    def __init__(self, device: SimulatedDisk, process: Process) -> None:
        self.device = device
        self.process = process

    def check(self, operation: str, path: str) -> None:
        """Raise an error when the process has ended or a fault is due."""
        if not self.process.alive:
            raise DiskError(errno.EIO, "the process is dead", path)
        if self.device.faults or self.device.failed_folders:
            error_number = self.device.meet_fault(operation, path)
            if error_number is not None:
                raise _error(error_number, path)

    # Finding -----------------------------------------------------------------------------------

    def _find(self, path: str) -> TreeNode | None:
        node: TreeNode = self.device.volume.root
        for part in _parts(path):
            if not isinstance(node, FolderNode):
                raise _error(errno.ENOTDIR, path)
            child = node.entries.get(part)
            if child is None:
                return None
            node = child
        return node

    def _get(self, path: str) -> TreeNode:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._get(path)
        if not isinstance(node, FileNode):
            raise _error(errno.EISDIR, path)
        return node

    def _folder(self, path: str) -> FolderNode:
        node = self._get(path)
        if not isinstance(node, FolderNode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[FolderNode, str]:
        folder, name = _split(path)
        return self._folder(folder), name

    # Files -----------------------------------------------------------------------------------

    def _create(self, path: str) -> FileNode:
        parent, name = self._parent(path)
        node = FileNode(self.device.now_ms())
        self.device.volume.change((parent, name, node))
        return node

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        self.check("open", path)
        node = self._find(path)
        if node is None and create:
            node = self._create(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, FileNode):
            raise _error(errno.EISDIR, path)
        return SimulatedFile(self, node, path, read_only)

    def read(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._file(path).data)

    def write_atomically(self, path: str, content: bytes) -> None:
        self.write_all_atomically({path: content})

    def write_all_atomically(self, contents: Mapping[str, bytes]) -> None:
        for path, content in contents.items():
            file = self.open(path + ".tmp", create=True)
            file.truncate(0)
            file.write_at(0, [content])
            file.sync()
            file.close()
        for path in contents:
            self.rename(path + ".tmp", path)
        for folder in dict.fromkeys(map(posixpath.dirname, contents)):
            self.sync_dir(folder)

    def lock(self, path: str) -> Lock:
        self.check("open", path)
        node = self._find(path) or self._create(path)
        if not isinstance(node, FileNode):
            raise _error(errno.EISDIR, path)
        if node.locked_by is not None:
            raise DiskError(errno.EAGAIN, "held by another process", path)
        lock = _SimulatedLock(node)
        self.process.on_exit.append(lock.close)
        return lock

    # Sizes and times -------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        self.check("stat", path)
        try:
            return self._find(path) is not None
        except DiskError:
            return False

    def size(self, path: str) -> int:
        self.check("stat", path)
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        self.check("stat", path)
        node = self._get(path)
        return node.modified_ms if isinstance(node, FileNode) else self.device.now_ms()

    def list(self, path: str) -> list[str]:
        self.check("read", path)
        return sorted(self._folder(path).entries)

    def is_dir(self, path: str) -> bool:
        self.check("stat", path)
        try:
            return isinstance(self._find(path), FolderNode)
        except DiskError:
            return False

    # Folders -----------------------------------------------------------------------------------

    def make_dirs(self, path: str) -> None:
        self.check("make_dirs", path)
        node: TreeNode = self.device.volume.root
        for part in _parts(path):
            if not isinstance(node, FolderNode):
                raise _error(errno.ENOTDIR, path)
            child = node.entries.get(part)
            if child is None:
                child = FolderNode()
                self.device.volume.change((node, part, child))
            node = child
        if not isinstance(node, FolderNode):
            raise _error(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        node = self._get(source)
        source_parent, source_name = self._parent(source)
        target_parent, target_name = self._parent(target)
        replaced = target_parent.entries.get(target_name)
        if replaced is node:
            return
        if isinstance(replaced, FolderNode) and (not isinstance(node, FolderNode) or replaced.entries):
            raise _error(errno.ENOTEMPTY if isinstance(node, FolderNode) else errno.EISDIR, source)
        if isinstance(replaced, FileNode) and isinstance(node, FolderNode):
            raise _error(errno.ENOTDIR, source)
        self.device.volume.change((source_parent, source_name, None), (target_parent, target_name, node))

    def remove(self, path: str) -> None:
        self.check("remove", path)
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return
        node = parent.entries.get(name)
        if isinstance(node, FolderNode):
            raise _error(errno.EISDIR, path)
        if node is not None:
            self.device.volume.change((parent, name, None))

    def remove_tree(self, path: str) -> None:
        self.check("remove", path)
        node = self._find(path)
        if node is None:
            return
        if not isinstance(node, FolderNode):
            raise _error(errno.ENOTDIR, path)
        self._empty(node)
        parent, name = self._parent(path)
        self.device.volume.change((parent, name, None))

    def _empty(self, folder: FolderNode) -> None:
        for name, node in sorted(folder.entries.items(), key=lambda item: item[0]):
            if isinstance(node, FolderNode):
                self._empty(node)
            self.device.volume.change((folder, name, None))

    def sync_dir(self, path: str) -> None:
        self.process.note_sync(path)
        self.check("sync_dir", path)
        self.device.volume.sync_folder(self._folder(path))

    def space(self, path: str) -> DiskSpace:
        self.check("stat", path)
        self._get(path)
        device = self.device
        total_bytes = UNLIMITED_BYTES if device.capacity_bytes is None else device.capacity_bytes
        return DiskSpace(total_bytes, max(0, total_bytes - device.volume.used_bytes()))


@lru_cache(maxsize=_PATHS_KEPT)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in posixpath.normpath(path).split("/") if part and part != ".")


@lru_cache(maxsize=_PATHS_KEPT)
def _split(path: str) -> tuple[str, str]:
    return posixpath.split(posixpath.normpath(path))
