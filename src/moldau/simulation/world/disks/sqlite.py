"""SQLite on a simulated disk. A virtual file system makes the faults of the host apply to its databases.

Code that uses SQLite gets its connections from ``Machine.open_sqlite``. On a real machine, this method calls
``apsw.Connection(path)``. On a simulated machine, it adds the file system that :func:`open_sqlite` registers.
Write-ahead logging needs shared memory, which a virtual file system in Python does not have. A database with
write-ahead logging must therefore set ``locking_mode=EXCLUSIVE`` first. A database with a single owner should
use this mode in any case.
"""

import errno
import itertools
from typing import Any

import apsw

from moldau.runtime.files.disk import File
from moldau.simulation.world.defects import DefectPlace
from moldau.simulation.world.disks.disk import MountedDisk


class _SimulatedVfsFile:
    """A database or journal file. Locks are not needed, because only one process at a time uses a volume.

    After the process has ended, SQLite still makes calls when a connection is destroyed. These calls have no
    effect. The file then has no reference to the disk. Otherwise the process would never be freed, because
    the garbage collector cannot see that a connection refers to its files.
    """

    def __init__(self, disk: MountedDisk, path: str, flags: list[int]) -> None:
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        self._disk: MountedDisk | None = disk
        self._path = path
        self._new = create and not disk.exists(path)
        self._file: File | None = disk.open(path, create=create)
        self._delete_on_close = bool(flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE)
        flags[1] = flags[0]
        disk.process.on_exit.append(self._detach)

    def _detach(self) -> None:
        self._disk = self._file = None

    @property
    def _alive(self) -> bool:
        return self._disk is not None and self._disk.process.alive

    def xRead(self, amount: int, offset: int) -> bytes:
        return self._file.read_at(offset, amount) if self._file is not None and self._alive else b""

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk is None or self._file is None or not self._alive:
            return
        host = self._disk.process.host
        if host is not None and host.defects.is_due(DefectPlace.SQLITE):
            raise apsw.IOError("defect")
        try:
            self._file.write_at(offset, [data])
        except OSError as error:  # the value that SQLite's own file system reports
            kind = apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError
            raise kind(str(error)) from error

    def xTruncate(self, size: int) -> None:
        if self._file is not None and self._alive:
            self._file.truncate(size)

    def xSync(self, flags: int) -> None:
        if self._disk is None or self._file is None or not self._alive:
            return
        self._file.sync()
        if self._new:  # SQLite's own file system also syncs the folder of a new file
            self._disk.sync_dir(self._path.rpartition("/")[0] or "/")
            self._new = False

    def xFileSize(self) -> int:
        return self._file.size() if self._file is not None and self._alive else 0

    def xClose(self) -> None:
        if self._disk is None or self._file is None or not self._alive:
            return
        self._file.close()
        if self._delete_on_close:
            self._disk.remove(self._path)
        self._disk.process.on_exit.remove(self._detach)
        self._detach()

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 512

    def xDeviceCharacteristics(self) -> int:
        return 0


class SimulatedVfs(apsw.VFS):
    """A file system for SQLite over the disk of a process. Its time and randomness are fixed."""

    _disk: MountedDisk | None = None
    """The simulated disk. It is ``None`` after the process has ended."""

    def __init__(self, name: str, disk: MountedDisk) -> None:
        self._disk = disk
        super().__init__(name, "")
        disk.process.on_exit.append(self._detach)

    def _detach(self) -> None:
        self._disk = None

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        if name is None:
            raise apsw.CantOpenError("temporary files belong in memory: set temp_store=MEMORY")
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert self._disk is not None
        return _SimulatedVfsFile(self._disk, path, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk is None or not self._disk.process.alive or not self._disk.exists(filename):
            return
        self._disk.remove(filename)
        if syncdir:
            self._disk.sync_dir(filename.rpartition("/")[0] or "/")

    def xAccess(self, pathname: str, flags: int) -> bool:
        return self._disk is not None and self._disk.process.alive and self._disk.exists(pathname)

    def xFullPathname(self, name: str) -> str:
        return name

    def xRandomness(self, numbytes: int) -> bytes:
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        return microseconds

    def xCurrentTimeInt64(self) -> int:
        return 210_866_760_000_000


_numbers = itertools.count()


def open_sqlite(disk: MountedDisk, path: str) -> apsw.Connection:
    """Open a database on a simulated disk, exclusively, with temporary tables in memory."""
    name = f"moldau-simulated-{next(_numbers)}"
    vfs = SimulatedVfs(name, disk)
    connection = apsw.Connection(path, vfs=name)  # the connection keeps the file system alive
    connection.pragma("temp_store", "memory")
    connection.pragma("locking_mode", "exclusive")
    del vfs
    return connection
