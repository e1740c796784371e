"""The contract of object stores, tested with every adapter."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_fakes import collect, machine, simulated_storage

from moldau.metrics import Meters
from moldau.objects import (
    FaultyStorage,
    FileStorage,
    MemoryStorage,
    MeteredStorage,
    ObjectNotFoundError,
    ObjectStorage,
    RetryingStorage,
    StorageError,
    StorageSettings,
    open_storage,
)
from moldau.objects.storage import fetch_once
from moldau.runtime import SeededEntropy, SystemClock

Opener = Callable[[], ObjectStorage]

KINDS = ("memory", "file", "s3", "s3-versioned", "s3proxy", "versitygw", "faults", "retrying", "simulated")


@pytest.fixture(params=KINDS)
def open_it(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    kind: str = request.param
    if kind.startswith("s3") or kind == "versitygw":
        if kind == "versitygw":
            endpoint = request.getfixturevalue("versitygw")
            bucket = request.getfixturevalue("versitygw_bucket")
        elif kind == "s3proxy":
            endpoint, _ = request.getfixturevalue("s3proxy")
            bucket = request.getfixturevalue("s3proxy_bucket")
        else:
            endpoint = request.getfixturevalue("s3_endpoint")
            versioned = kind == "s3-versioned"
            bucket = request.getfixturevalue("s3_versioned_bucket" if versioned else "s3_bucket")
        options = {"endpoint": endpoint, "access.key.id": "key", "secret.access.key": "secret"}
        return lambda: open_storage(
            StorageSettings(f"s3://{bucket}/some/prefix", options=options), machine(), Meters()
        )
    memory = MemoryStorage(SystemClock())
    simulated = simulated_storage()
    makers: dict[str, Opener] = {
        "memory": lambda: memory,
        "file": lambda: FileStorage(machine(), f"{tmp_path}/objects"),
        "faults": lambda: FaultyStorage(memory, SeededEntropy(1)),
        "retrying": lambda: RetryingStorage(MeteredStorage(memory, Meters()), SeededEntropy(1)),
        "simulated": lambda: simulated,
    }
    return makers[kind]


def test_any_range_of_an_uploaded_object_can_be_read(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        await storage.check()
        content = bytes(range(256)) * 40
        await storage.upload("wal/2026/a", memoryview(b"--" + content)[2:], len(content))
        for offset, size in ((0, 10), (5, 1000), (10_230, 10), (0, 10_240)):
            found = await storage.fetch("wal/2026/a", offset, size)
            assert bytes(found) == content[offset : offset + size]
            once = await fetch_once(storage, "wal/2026/a", offset, size)
            assert bytes(once) == content[offset : offset + size]
        await storage.close()

    asyncio.run(main())


def test_a_range_past_the_end_is_an_error_not_a_short_answer(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        await storage.upload("a", b"0123456789", 10)
        for offset, size in ((5, 6), (10, 1), (500, 1)):
            with pytest.raises(StorageError) as caught:
                await storage.fetch("a", offset, size)
            assert not isinstance(caught.value, ObjectNotFoundError)
            with pytest.raises(StorageError) as caught:
                await fetch_once(storage, "a", offset, size)
            assert not isinstance(caught.value, ObjectNotFoundError)

    asyncio.run(main())


def test_an_absent_object_is_not_found(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        with pytest.raises(ObjectNotFoundError):
            await storage.fetch("nowhere/at/all", 0, 1)
        with pytest.raises(ObjectNotFoundError):
            await fetch_once(storage, "nowhere/at/all", 0, 1)

    asyncio.run(main())


def test_an_upload_of_another_length_than_announced_stores_nothing(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        for length in (2, 4):
            with pytest.raises(StorageError) as caught:
                await storage.upload("a/b", b"abc", length)
            assert not caught.value.transient
        assert await collect(storage, "") == []

    asyncio.run(main())


def test_an_upload_may_be_repeated(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        await storage.upload("a/b", b"abc", 3)
        await storage.upload("a/b", b"abc", 3)
        assert bytes(await storage.fetch("a/b", 0, 3)) == b"abc"
        assert [info.key for info in await collect(storage, "")] == ["a/b"]

    asyncio.run(main())


def test_a_deletion_of_several_keys_ignores_missing_objects(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        for name in ("a", "b", "c"):
            await storage.upload(f"x/{name}", b"1", 1)
        await storage.delete(["x/a", "x/nobody", "x/c"])
        assert [info.key for info in await collect(storage, "x/")] == ["x/b"]
        await storage.delete(["x/a", "x/b"])
        await storage.delete([])
        assert await collect(storage, "x/") == []

    asyncio.run(main())


def test_objects_are_listed_in_the_order_of_their_keys_after_any_key(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        before_ms = SystemClock().now_ms()
        keys = ["w/1/a", "w/1/b", "w/1.5", "w/2/a", "w2/a", "v"]
        for position, key in enumerate(keys):
            await storage.upload(key, b"x" * position, position)
        found = await collect(storage, "w/")
        assert [info.key for info in found] == sorted(keys[:4])
        assert {info.key: info.size_bytes for info in found} == {
            "w/1/a": 0,
            "w/1/b": 1,
            "w/1.5": 2,
            "w/2/a": 3,
        }
        # S3 returns times with a resolution of one second.
        assert all(abs(info.last_modified_ms - before_ms) < 60_000 for info in found)
        assert [info.key for info in await collect(storage, "w/", "w/1/a")] == ["w/1/b", "w/2/a"]
        assert [info.key for info in await collect(storage, "")] == sorted(keys)
        assert await collect(storage, "nothing/") == []
        with pytest.raises(StorageError):
            await collect(storage, "w")

    asyncio.run(main())


def test_keys_that_would_leave_the_store_are_refused(open_it: Opener) -> None:
    async def main() -> None:
        storage = open_it()
        for key in ("../a", "/a", "a//b", "a/", "", "a/./b"):
            with pytest.raises(StorageError):
                await storage.upload(key, b"", 0)

    asyncio.run(main())
