"""The machine's own files and folders."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from moldau.runtime.files.descriptor_cache import PROCESS, DescriptorCache
from moldau.runtime.files.disk import DiskError, DiskSpace, File, Lock
from moldau.runtime.files.local_file import LocalFile, disk_error

FILES_SYNCED_TOGETHER: Final = 16


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error(error, path) from error


class _LocalLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalDisk:
    """The machine's file systems."""

    def __init__(self, descriptors: DescriptorCache = PROCESS) -> None:
        self._descriptors = descriptors

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        with _named(path):
            descriptor = self._open(path, flags | (os.O_CREAT if create else 0))
        return LocalFile(path, descriptor, flags, self._descriptors)

    def _open(self, path: str, flags: int) -> int:
        return self._descriptors.with_room(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))

    def read(self, path: str) -> bytes:
        with _named(path):
            descriptor = self._open(path, os.O_RDONLY)
            with open(descriptor, "rb") as file:
                return file.read()

    def write_atomically(self, path: str, content: bytes) -> None:
        self.write_all_atomically({path: content})

    def write_all_atomically(self, contents: Mapping[str, bytes]) -> None:
        paths = list(contents)
        for start in range(0, len(paths), FILES_SYNCED_TOGETHER):
            some = paths[start : start + FILES_SYNCED_TOGETHER]
            # All files are written before the first sync, so that one journal commit covers them.
            with contextlib.ExitStack() as written:
                descriptors = [written.enter_context(self._written(path, contents[path])) for path in some]
                for path, descriptor in zip(some, descriptors, strict=True):
                    with _named(path):
                        os.fsync(descriptor)
        for path in paths:
            self.rename(path + ".tmp", path)
        for folder in dict.fromkeys(map(os.path.dirname, paths)):
            self.sync_dir(folder)

    @contextlib.contextmanager
    def _written(self, path: str, content: bytes) -> Iterator[int]:
        """A context with a temporary file that contains ``content``. Yields the descriptor of the file."""
        with _named(path):
            descriptor = self._open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with _named(path):
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            yield descriptor
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _named(path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _named(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        with _named(path):
            return sorted(self._descriptors.with_room(lambda: os.listdir(path)))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_dirs(self, path: str) -> None:
        with _named(path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _named(source), self._descriptors.renaming(source, target):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _named(path), contextlib.suppress(FileNotFoundError), self._descriptors.removing(path):
            os.remove(path)

    def remove_tree(self, path: str) -> None:
        with _named(path), contextlib.suppress(FileNotFoundError), self._descriptors.removing(path):
            self._descriptors.with_room(lambda: shutil.rmtree(path))

    def sync_dir(self, path: str) -> None:
        with _named(path):
            descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        with _named(path):
            found = os.statvfs(path)
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def lock(self, path: str) -> Lock:
        with _named(path):
            descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
            try:
                # ``flock`` conflicts with other locks of this process, and ``lockf`` conflicts with Java's
                # FileLock.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise DiskError(errno.EAGAIN, "held by another process", path) from error
                raise
        return _LocalLock(descriptor)
