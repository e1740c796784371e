"""The contract of remote storage managers, checked with every store, and the object layout of the built-in
manager."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_fakes import DELETING, FINISHED, segment, segment_data

from moldau.metrics import Meters
from moldau.objects import (
    FaultyStorage,
    MemoryStorage,
    ObjectStorage,
    RetryingStorage,
    RetryPolicy,
    StorageError,
    StorageHealth,
)
from moldau.protocol.decoding_errors import ProtocolError
from moldau.runtime import Machine, SeededEntropy, SystemClock
from moldau.tiered.metadata.segments import RemoteLogSegmentMetadata, TopicIdPartition
from moldau.tiered.storage.object_layout import (
    ORDER,
    decode_location,
    encode_location,
    pack_indexes,
    parse_segment_key,
    segment_keys,
    unpack_indexes,
)
from moldau.tiered.storage.object_storage_manager import ObjectStorageManager, open_object_storage_manager
from moldau.tiered.storage.storage_manager import (
    IndexType,
    LogSegmentData,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageManager,
)

Opener = Callable[[], RemoteStorageManager]
LOG = bytes(range(256)) * 41


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine.real()


@pytest.fixture(params=("memory", "file", "s3"))
def open_it(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> Opener:
    kind: str = request.param
    if kind == "memory":
        store = MemoryStorage(SystemClock())
        return lambda: ObjectStorageManager(store)
    configs = {"url": f"file://{tmp_path}/objects", "broker.id": "1", "cluster.id": "c", "log.dir": "/d"}
    if kind == "s3":
        configs |= {
            "url": f"s3://{request.getfixturevalue('s3_bucket')}/some/where",
            "endpoint": request.getfixturevalue("s3_endpoint"),
            "access.key.id": "key",
            "secret.access.key": "secret",
            "prefix": "cold",
        }
    return lambda: open_object_storage_manager(configs, machine, Meters())


async def copied(
    manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
) -> RemoteLogSegmentMetadata:
    custom = await manager.copy_log_segment_data(metadata, data)
    return replace(metadata, state=FINISHED, custom_metadata=custom)


def started(number: int = 1) -> RemoteLogSegmentMetadata:
    return segment(number, 70, 99, size_bytes=len(LOG))


def test_copied_segments_can_be_read(open_it: Opener) -> None:
    async def main() -> None:
        writer = open_it()
        data = segment_data(LOG)
        metadata = await copied(writer, started(), data)
        assert metadata.custom_metadata is None or len(metadata.custom_metadata) <= 128
        await writer.close()
        manager = open_it()
        for start, end in ((0, None), (0, 10), (5, 5), (300, 301), (10_000, None), (10_000, 10**9)):
            found = await manager.fetch_log_segment(metadata, start, end)
            assert bytes(found) == LOG[start:end]
        for index_type in IndexType:
            index = await manager.fetch_index(metadata, index_type)
            assert bytes(index) == bytes(data.index(index_type) or b"")
        await manager.close()

    asyncio.run(main())


def test_copying_again_overwrites(open_it: Opener) -> None:
    async def main() -> None:
        manager = open_it()
        await copied(manager, started(), segment_data(b"?" * len(LOG)))
        metadata = await copied(manager, started(), segment_data(LOG))
        assert bytes(await manager.fetch_log_segment(metadata, 0)) == LOG
        await manager.close()

    asyncio.run(main())


def test_a_segment_without_aborted_transactions_has_no_such_index(open_it: Opener) -> None:
    async def main() -> None:
        manager = open_it()
        metadata = await copied(manager, started(), segment_data(LOG, aborted=False))
        with pytest.raises(RemoteResourceNotFoundError, match="no transaction index"):
            await manager.fetch_index(metadata, IndexType.TRANSACTION)
        assert bytes(await manager.fetch_index(metadata, IndexType.LEADER_EPOCH)) == b"0\n1\n0 0\n"
        await manager.close()

    asyncio.run(main())


def test_a_deleted_segment_is_gone_and_may_be_deleted_again(open_it: Opener) -> None:
    async def main() -> None:
        manager = open_it()
        metadata = await copied(manager, started(), segment_data(LOG))
        other = await copied(manager, started(2), segment_data(LOG))
        for _ in range(2):
            await manager.delete_log_segment_data(replace(metadata, state=DELETING))
        with pytest.raises(RemoteResourceNotFoundError):
            await manager.fetch_log_segment(metadata, 0)
        with pytest.raises(RemoteResourceNotFoundError):
            await manager.fetch_index(metadata, IndexType.OFFSET)
        assert bytes(await manager.fetch_log_segment(other, 0)) == LOG
        await manager.close()

    asyncio.run(main())


def test_objects_of_a_failed_copy_are_deleted_with_the_first_metadata_alone(open_it: Opener) -> None:
    async def main() -> None:
        manager = open_it()
        metadata = await copied(manager, started(), segment_data(LOG))
        await manager.delete_log_segment_data(started())
        with pytest.raises(RemoteResourceNotFoundError):
            await manager.fetch_log_segment(metadata, 0)
        await manager.close()

    asyncio.run(main())


# The built-in manager -----------------------------------------------------------------------------------


async def keys_of(store: ObjectStorage) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


def test_keys_of_objects_describe_their_content() -> None:
    async def main() -> None:
        store = MemoryStorage(SystemClock())
        metadata = await copied(ObjectStorageManager(store), started(), segment_data(LOG))
        stem = f"tiered/orders-AAKvN7wAAAAAAAAAAAAATQ/3/00000000000000000070-{UUID(int=1)}"
        assert await keys_of(store) == [f"{stem}.indexes", f"{stem}.log"]
        assert bytes(await store.fetch(f"{stem}.log", 0, len(LOG))) == LOG
        packed = pack_indexes(started(), segment_data(LOG)).content
        content = await store.fetch(f"{stem}.indexes", 0, len(packed))
        of, indexes = unpack_indexes(content)
        assert of == started()
        assert {kind: bytes(found) for kind, found in indexes.items()} == {
            kind: bytes(segment_data().index(kind) or b"") for kind in IndexType
        }
        assert decode_location(metadata.custom_metadata or b"").attempt == ""

    asyncio.run(main())


def test_the_attempt_that_was_published_is_read_and_all_of_them_are_deleted() -> None:
    """Several builders may build a segment at the same time. Each builder writes its own objects."""

    async def main() -> None:
        store = MemoryStorage(SystemClock())
        manager = ObjectStorageManager(store)
        packed = pack_indexes(started(), segment_data(LOG))
        for attempt in ("task-3-0", "task-3-1"):
            keys = segment_keys("tiered", started().id, 70, attempt)
            content = LOG if attempt == "task-3-1" else b"?" * len(LOG)
            await store.upload(keys.log, content, len(content))
            await store.upload(keys.indexes, packed.content, len(packed.content))
        neighbours = [f"tiered/orders-AAKvN7wAAAAAAAAAAAAATQ/3/{n:020d}-{UUID(int=1)}.log" for n in (69, 71)]
        for key in neighbours:
            await store.upload(key, b"x", 1)
        metadata = replace(
            started(), state=FINISHED, custom_metadata=encode_location("task-3-1", packed.index_sizes)
        )
        assert bytes(await manager.fetch_log_segment(metadata, 0)) == LOG
        assert bytes(await manager.fetch_index(metadata, IndexType.TIMESTAMP)) == b"time-index!"
        await manager.delete_log_segment_data(metadata)
        assert await keys_of(store) == neighbours

    asyncio.run(main())


def test_errors_of_the_store_show_whether_a_retry_can_help() -> None:
    class Refusing(MemoryStorage):
        async def upload(self, key: str, data: object, length: int) -> None:
            raise StorageError(f"{key}: access denied", transient=False)

    async def main() -> None:
        with pytest.raises(RemoteStorageError, match=r"copying orders-3:.*access denied") as caught:
            await ObjectStorageManager(Refusing(SystemClock())).copy_log_segment_data(
                started(), segment_data(LOG)
            )
        assert not caught.value.transient
        faulty = FaultyStorage(MemoryStorage(SystemClock()), SeededEntropy(1))
        manager = ObjectStorageManager(faulty)
        metadata = await copied(manager, started(), segment_data(LOG))
        faulty.weather = replace(faulty.weather, down=True)
        with pytest.raises(RemoteStorageError) as caught:
            await manager.fetch_log_segment(metadata, 0)
        assert caught.value.transient
        foreign = replace(metadata, custom_metadata=b"\x09of another manager")
        with pytest.raises(RemoteStorageError, match="custom metadata") as caught:
            await manager.fetch_log_segment(foreign, 0)
        assert not caught.value.transient
        with pytest.raises(RemoteResourceNotFoundError, match="never copied"):
            await manager.fetch_log_segment(started(), 0)

    asyncio.run(main())


def test_faults_of_the_store_are_reported() -> None:
    async def main() -> None:
        faulty = FaultyStorage(MemoryStorage(SystemClock()), SeededEntropy(1))
        health, policy = StorageHealth(), RetryPolicy(deadline_ms=0)
        retrying = RetryingStorage(faulty, SeededEntropy(1), policy=policy, health=health)
        manager = ObjectStorageManager(retrying, health=health)
        assert manager.problem is None
        faulty.weather = replace(faulty.weather, down=True)
        with pytest.raises(RemoteStorageError):
            await copied(manager, started(), segment_data(LOG))
        assert "the store of the remote tier is struggling" in (manager.problem or "")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("configs", "named"),
    [
        ({}, r"rsm\.config\.url"),
        ({"url": "ftp://x"}, r"rsm\.config\.url.*ftp"),
        ({"url": "memory://", "prefix": "/"}, "prefix"),
    ],
)
def test_a_wrong_key_is_named(configs: dict[str, str], named: str, machine: Machine) -> None:
    with pytest.raises(RemoteStorageError, match=named):
        open_object_storage_manager(configs, machine, Meters())


@given(
    st.builds(
        TopicIdPartition,
        st.uuids(),
        st.text("abcXYZ09._-", min_size=1, max_size=40).filter(lambda name: name not in (".", "..")),
        st.integers(0, 10**6),
    ),
    st.integers(0, 2**62),
    st.from_regex(r"[A-Za-z0-9_-]{0,40}", fullmatch=True),
    st.sampled_from(["tiered", "a/b", "x-1/0"]),
)
def test_keys_are_parsed_back(partition: TopicIdPartition, start: int, attempt: str, prefix: str) -> None:
    of = segment(3, start, start, partition=partition)
    keys = segment_keys(prefix, of.id, start, attempt)
    for key, is_log in zip(keys, (True, False), strict=True):
        assert parse_segment_key(key) == (of.id, start, attempt, is_log)


def test_keys_of_other_objects_are_not_parsed_as_keys_of_segments() -> None:
    keys = segment_keys("tiered", started().id, 70)
    for key in (
        "wal/0/2026/x",
        keys.log + "x",
        keys.log.replace(".log", ".txt"),
        keys.log.replace("-AAKv", "-!AKv"),
    ):
        assert parse_segment_key(key) is None
    with pytest.raises(ValueError, match="cannot name an attempt"):
        segment_keys("tiered", started().id, 70, "a/b")


@given(st.lists(st.none() | st.integers(0, 2**31), min_size=len(ORDER), max_size=len(ORDER)))
def test_encoded_locations_are_short_and_can_be_decoded(sizes: list[int | None]) -> None:
    encoded = encode_location("a" * 40, sizes)
    assert len(encoded) <= 128
    found = decode_location(encoded)
    assert (found.attempt, list(found.index_sizes)) == ("a" * 40, sizes)


@given(st.data())
def test_a_damaged_container_is_refused(data: st.DataObject) -> None:
    content = bytearray(pack_indexes(started(), segment_data()).content)
    unpack_indexes(content)
    if data.draw(st.booleans()):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    with pytest.raises(ProtocolError):
        unpack_indexes(content)


def test_the_order_of_indexes_never_changes() -> None:
    assert [ORDER.index(kind) for kind in ORDER] == list(range(5))
    assert [kind.value for kind in ORDER] == [
        "offset",
        "timestamp",
        "transaction",
        "producer-snapshot",
        "leader-epoch",
    ]
    assert encode_location("", (1, 2, None, 3, 4)).hex() == "01000203000405"
