"""Objects as files of a folder. They are durable when an upload returns.

obstore's own ``LocalStore`` does not sync the file and does not sync its folder. Therefore a crash of the
machine could lose acknowledged objects. This store writes a temporary file, syncs it, renames it and syncs
the folder, on worker threads. The simulation can also run this store on a simulated disk.
"""

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count

from moldau.objects.storage import (
    CHECK_KEY,
    LIST_PAGE_KEYS,
    ObjectInfo,
    ObjectNotFoundError,
    StorageError,
    check_by_use,
    check_folder,
    check_key,
    check_length,
)
from moldau.runtime import Disk, DiskError, DurableFolders, Machine
from moldau.runtime.buffers import Buffer

__all__ = ["FileStorage"]

UPLOADING_SUFFIX = ".uploading"

LEFTOVER_AGE_MS = 3_600_000
"""Age in milliseconds. A temporary file of this age cannot belong to a running upload of any process."""

THREADS = 8
"""Number of worker threads. They wait for the disk most of the time. More threads sync more files in
parallel."""


@dataclass(slots=True)
class _WriteAttempt:
    """The temporary file of an upload, and whether the upload was abandoned. The caller may already have
    reused the memory of an abandoned upload, so its file must not become an object."""

    temporary: str
    is_over: bool = False


class FileStorage:
    """An object store in the folder ``root``. The folder is created if it does not exist. Several processes
    may share it."""

    def __init__(self, machine: Machine, root: str, owner: str = "") -> None:
        """``owner`` names this process's uploads, because several processes may upload an object of the
        same key at the same time.
        """
        self._owner = owner
        self._disk: Disk = machine.disk
        self._workers = machine.workers.apart(THREADS, "moldau-objects")
        self._clock = machine.clock
        self._root = posixpath.normpath(root)
        self._attempts = count()
        self._folders = DurableFolders(machine.disk, self._root)

    async def upload(self, key: str, data: Buffer, length: int) -> None:
        check_key(key)
        view = check_length(key, data, length)
        # Each attempt has a temporary file of its own. An upload that timed out may still write in its
        # thread, from memory that is already in use for other data.
        attempt = _WriteAttempt(f"{self._path(key)}.{self._owner}{next(self._attempts)}{UPLOADING_SUFFIX}")
        try:
            await self._workers.run(self._write, self._path(key), attempt, view)
        except OSError as error:
            raise _failed(key, error) from error
        except asyncio.CancelledError:
            attempt.is_over = True
            raise

    async def fetch(self, key: str, offset: int, size: int) -> memoryview:
        return await self._fetch(self._read, key, offset, size)

    async def fetch_once(self, key: str, offset: int, size: int) -> memoryview:
        return await self._fetch(self._read_once, key, offset, size)

    async def _fetch(
        self, read: Callable[[str, int, int], memoryview], key: str, offset: int, size: int
    ) -> memoryview:
        check_key(key)
        try:
            content = await self._workers.run(read, self._path(key), offset, size)
        except FileNotFoundError:
            raise ObjectNotFoundError(key) from None
        except OSError as error:
            raise _failed(key, error) from error
        if len(content) != size:
            raise StorageError(
                f"{key}: {len(content)} of {size} bytes from {offset} are there", transient=False
            )
        return content

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        try:
            await self._workers.run(self._remove, tuple(keys))
        except OSError as error:
            raise _failed("delete", error) from error

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        check_folder(prefix)
        try:
            found = await self._workers.run(self._walk, prefix, start_after)
        except OSError as error:
            raise _failed(prefix, error) from error
        for position in range(0, len(found), LIST_PAGE_KEYS):
            yield found[position : position + LIST_PAGE_KEYS]

    async def check(self) -> None:
        try:
            await self._workers.run(self._folders.make, self._root)
        except OSError as error:
            raise StorageError(
                f"cannot use object storage file://{self._root}: {error.strerror}", transient=False
            ) from error
        await check_by_use(self, f"file://{self._root}", CHECK_KEY + self._owner)
        await self._workers.run(self._remove_leftovers)

    async def close(self) -> None:
        pass

    # On worker threads ----------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _write(self, path: str, attempt: "_WriteAttempt", view: memoryview) -> None:
        temporary = attempt.temporary
        folder = posixpath.dirname(path)
        self._folders.make(folder)
        try:
            try:
                file = self._disk.open(temporary, create=True)
            except FileNotFoundError:
                # The folder was removed after it was created.
                self._folders.forget()
                self._folders.make(folder)
                file = self._disk.open(temporary, create=True)
            try:
                file.fill(view)
            finally:
                file.close()
            if attempt.is_over:
                self._remove_quietly(temporary)
                return
            self._disk.rename(temporary, path)
            self._disk.sync_dir(folder)
        except OSError:
            self._remove_quietly(temporary)
            raise

    def _remove_quietly(self, path: str) -> None:
        with contextlib.suppress(OSError):  # if this fails, a later listing or check removes the file
            self._disk.remove(path)

    def _read(self, path: str, offset: int, size: int) -> memoryview:
        file = self._disk.open(path, read_only=True)
        try:
            return memoryview(file.read_at(offset, size))
        finally:
            file.close()

    def _read_once(self, path: str, offset: int, size: int) -> memoryview:
        file = self._disk.open(path, read_only=True)
        try:
            return file.read_once(offset, size)
        finally:
            file.close()

    def _remove(self, keys: Collection[str]) -> None:
        # The folder is not synced after the removal. If a crash of the machine restores the object, the
        # orphan scan finds it again.
        folders: dict[str, list[str]] = {}
        for key in keys:
            self._disk.remove(self._path(key))
            folders.setdefault(posixpath.dirname(self._path(key)), []).append(posixpath.basename(key))
        # Temporary files of these objects remain if a process was killed during an upload. They are removed,
        # too. An upload that still runs then fails, because its file is missing.
        for folder, names in folders.items():
            with contextlib.suppress(FileNotFoundError):
                for name in self._disk.list(folder):
                    if name.endswith(UPLOADING_SUFFIX) and name.rsplit(".", 2)[0] in names:
                        self._disk.remove(f"{folder}/{name}")

    def _walk(self, prefix: str, start_after: str) -> Sequence[ObjectInfo]:
        found: list[ObjectInfo] = []
        oldest_ms = self._clock.now_ms() - LEFTOVER_AGE_MS
        for key in self._files(prefix):
            if key.endswith(UPLOADING_SUFFIX):
                self._remove_leftover(key, oldest_ms)
            elif key > start_after:
                try:
                    path = self._path(key)
                    found.append(ObjectInfo(key, self._disk.size(path), self._disk.modified_ms(path)))
                except FileNotFoundError:
                    continue  # The file was removed after its folder was listed.
        # The objects are sorted by their whole keys, because "a.b" comes before "a/b". The order of a walk
        # through the folders is different.
        found.sort(key=lambda info: info.key)
        return found

    def _files(self, prefix: str) -> Sequence[str]:
        keys: list[str] = []
        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                names = self._disk.list(self._path(folder).rstrip("/"))
            except FileNotFoundError:
                continue
            for name in names:
                if self._disk.is_dir(self._path(folder + name)):
                    folders.append(f"{folder}{name}/")
                else:
                    keys.append(folder + name)
        return keys

    def _remove_leftovers(self) -> None:
        oldest_ms = self._clock.now_ms() - LEFTOVER_AGE_MS
        for key in self._files(""):
            if key.endswith(UPLOADING_SUFFIX):
                self._remove_leftover(key, oldest_ms)

    def _remove_leftover(self, key: str, oldest_ms: int) -> None:
        with contextlib.suppress(OSError):
            if self._disk.modified_ms(self._path(key)) < oldest_ms:
                self._disk.remove(self._path(key))


def _failed(what: str, error: OSError) -> StorageError:
    if not isinstance(error, DiskError | FileNotFoundError):
        raise error
    return StorageError(f"{what}: {error.strerror or error}")
