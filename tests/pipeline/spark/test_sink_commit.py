"""The exactly-once part of the sink, with a driver that is killed at any step. The tests do not need
Spark.
"""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

import moldau.testing
from moldau.client.cluster import Client, connected
from moldau.client.errors import ToolError
from moldau.objects.factory import StorageSettings
from moldau.pipeline.reading.decoding import decode_found
from moldau.pipeline.reading.fetching import fetch_found
from moldau.pipeline.sink import commit as commit_module
from moldau.pipeline.sink.commit import MARKERS_KEPT, CommitTarget, Part, SinkCommitter
from moldau.pipeline.sink.produce import produce
from moldau.pipeline.sink.rows import BatchBuilder, Routing, lay_out_object
from moldau.pipeline.sink.store import FileSinkStore, SinkStore, open_sink_store
from moldau.pipeline.sink_keys import part_key
from moldau.pipeline.source.options import parse_options
from moldau.pipeline.source.snapshot import pin
from moldau.records.compression import Compression
from moldau.runtime.buffers import Buffer
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SystemEntropy

PARTITIONS = 3
LIMIT = 1_000_000


class Killed(BaseException):
    """A test raises this exception to simulate a kill of the driver."""


class DyingStore(FileSinkStore):
    """A store whose user is killed at call number n. The kill is before or after the effect of the call."""

    def __init__(self, root: str, calls_left: int, after: bool) -> None:
        super().__init__(root)
        self._calls_left = calls_left
        self._after = after

    async def put(self, key: str, content: Buffer) -> None:
        await self._dying(super().put(key, content))

    async def create(self, key: str, content: Buffer) -> bool:
        return bool(await self._dying(super().create(key, content)))

    async def read(self, key: str) -> bytes | None:
        found: bytes | None = await self._dying(super().read(key))
        return found

    async def delete(self, keys: Iterable[str]) -> None:
        await self._dying(super().delete(keys))

    async def _dying(self, call: Awaitable[Any]) -> Any:
        self._calls_left -= 1
        if self._calls_left == 0 and not self._after:
            asyncio.ensure_future(call).cancel()
            raise Killed
        done = await call
        if self._calls_left == 0:
            raise Killed
        return done


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node(diskless=True) as running:
        yield running


@pytest.fixture
def target(node: moldau.testing.Node, request: pytest.FixtureRequest) -> CommitTarget:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result(60)
    topic = with_client(node, lambda client: client.topic(name))
    return CommitTarget(name, str(topic.topic_id), 0, StorageSettings(f"file://{root(node)}"), False)


def root(node: moldau.testing.Node) -> str:
    return f"{node.data}/objects"


def with_client(node: moldau.testing.Node, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with connected(node.bootstrap_servers, 60.0) as client:
            return await work(client)

    return asyncio.run(run())


def commit(
    node: moldau.testing.Node,
    target: CommitTarget,
    batch_id: int,
    values: Iterable[str],
    store: SinkStore | None = None,
    *,
    query: str = "",
    partitions: int = PARTITIONS,
) -> None:
    """Create the commit of a driver. The tasks of this driver wrote ``values``, which are distributed over
    the partitions by their keys."""

    async def work(client: Client) -> None:
        parts = []
        plain = FileSinkStore(root(node))
        query_id = query or target.topic_id
        for some in (list(values)[::2], list(values)[1::2]):
            if some:
                batches = batches_of(target.topic, some, partitions)
                content = lay_out_object(UUID(target.topic_id), batches, created_ms=0, broker_id=-1)
                parts.append(Part(part_key(query_id, SystemEntropy().uuid4()), len(content)))
                await plain.put(parts[-1].key, content)
        committer = SinkCommitter(client, store or plain, target, SystemClock(), SystemEntropy())
        try:
            await committer.commit_batch(query_id, batch_id, parts)
        except ToolError:
            # After a failed commit Spark calls ``abort``, which discards the parts.
            await committer.discard(parts)
            raise

    with_client(node, work)


def batches_of(topic: str, values: list[str], partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    builder = BatchBuilder(Routing(topic, {topic: partitions}), Compression.LZ4, 1_700_000_000_000, LIMIT)
    builder.add(pa.record_batch({"key": values, "value": values}))
    return {partition: batches for (_, partition), batches in builder.drain().items()}


def written(node: moldau.testing.Node, topic: str) -> list[str]:
    options = parse_options({"kafka.bootstrap.servers": node.bootstrap_servers, "subscribe": topic})
    (found,) = with_client(node, lambda client: pin(client, options))
    tables = decode_found(fetch_found(found.source, found.ranges), found.ranges, {"value"})
    return sorted(value.decode() for table in tables for value in table.column("value").to_pylist())


def leftovers(node: moldau.testing.Node, target: CommitTarget) -> list[str]:
    folder = pathlib.Path(root(node)) / "sink" / target.topic_id / "parts"
    return [path.name for path in folder.glob("*")] if folder.exists() else []


def test_a_batch_that_is_repeated_is_written_once(node: moldau.testing.Node, target: CommitTarget) -> None:
    for batch_id in (0, 1):
        for attempt in range(3):
            # When a batch is repeated, its rows may have another order. If the source is not repeatable, the
            # repeated batch may also have other rows.
            commit(node, target, batch_id, [f"{batch_id}-{attempt}-{n}" for n in range(20 + attempt)])
    assert written(node, target.topic) == sorted(
        f"{batch_id}-0-{n}" for batch_id in (0, 1) for n in range(20)
    )
    assert leftovers(node, target) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 13))
def test_a_driver_that_is_killed_leaves_a_batch_whole_and_once(
    node: moldau.testing.Node, target: CommitTarget, step: int, after: bool
) -> None:
    first, second = ([f"{name}{n}" for n in range(30)] for name in "ab")
    try:
        commit(node, target, 7, first, DyingStore(root(node), step, after))
    except Killed:
        assert written(node, target.topic) in ([], sorted(first))
    commit(node, target, 7, second)
    assert written(node, target.topic) in (sorted(first), sorted(second))
    commit(node, target, 8, ["next"])
    assert len(written(node, target.topic)) == 31


def test_two_concurrent_drivers_write_a_batch_once(node: moldau.testing.Node, target: CommitTarget) -> None:
    async def both() -> list[Any]:
        drivers = (
            asyncio.to_thread(commit, node, target, 3, [f"{name}{n}" for n in range(30)]) for name in "ab"
        )
        return await asyncio.gather(*drivers, return_exceptions=True)

    assert [result for result in asyncio.run(both()) if isinstance(result, BaseException)] == []
    found = written(node, target.topic)
    assert len(found) == 30
    assert len({value[0] for value in found}) == 1


class ForgetfulStore(FileSinkStore):
    """A store client that repeats a call because the response got lost. The repeated call finds the object of
    the first call."""

    async def create(self, key: str, content: Buffer) -> bool:
        await super().create(key, content)
        return False


def test_a_batch_is_written_once_if_the_response_to_its_intent_was_lost(
    node: moldau.testing.Node, target: CommitTarget
) -> None:
    commit(node, target, 0, ["a", "b"], ForgetfulStore(root(node)))
    assert written(node, target.topic) == ["a", "b"]


def test_an_outcome_that_is_not_known_any_more_is_not_guessed(
    node: moldau.testing.Node, target: CommitTarget
) -> None:
    store = FileSinkStore(root(node))
    key = f"sink/{target.topic_id}/{5:020d}.intent"
    asyncio.run(store.put(key, b"wal/0/2026010100/000000000000-1-00000000000000000000"))
    with pytest.raises(ToolError, match="is not known any more"):
        commit(node, target, 5, ["a"])
    asyncio.run(store.delete([key, f"sink/{target.topic_id}/{5:020d}.done"]))
    commit(node, target, 5, ["a"])
    assert written(node, target.topic) == ["a"]


def test_a_refused_batch_does_not_prevent_later_batches(
    node: moldau.testing.Node, target: CommitTarget
) -> None:
    """The first batch names the id of a deleted topic. The later batches name the id of the new topic with
    the same name."""
    before = replace(target, topic_id=str(UUID(int=5)))
    for _ in range(2):
        with pytest.raises(ToolError, match="no such partition"):
            commit(node, before, 7, ["old"], query=target.topic_id)
    commit(node, target, 7, ["a", "b"])
    commit(node, target, 7, ["c"])
    assert written(node, target.topic) == ["a", "b"]
    folder = pathlib.Path(root(node)) / "sink" / target.topic_id
    commit(node, target, 7 + MARKERS_KEPT, ["d"])
    assert {path.name for path in folder.glob("*.*")} == {f"{107:020d}.intent", f"{107:020d}.done"}
    assert leftovers(node, target) == []


def test_a_partly_refused_batch_never_counts_as_written(
    node: moldau.testing.Node, target: CommitTarget
) -> None:
    for _ in range(2):
        with pytest.raises(ToolError, match=r"no such partition.; other rows of the batch are in the topic"):
            commit(node, target, 7, [f"v{n}" for n in range(40)], partitions=PARTITIONS + 1)
    found = written(node, target.topic)
    assert 0 < len(found) == len(set(found)) < 40


def test_a_batch_that_is_too_large_is_refused_before_anything_is_named(
    node: moldau.testing.Node, target: CommitTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [f"v{n}" for n in range(40)]
    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "OBJECT_BYTES_MAX", 100)
        with pytest.raises(ToolError, match=r"at once \(100 can\): .* less at a time.*maxOffsetsPerTrigger"):
            commit(node, target, 7, values)
    assert written(node, target.topic) == []
    assert leftovers(node, target) == []
    commit(node, target, 7, values)
    assert written(node, target.topic) == sorted(values)


def test_rows_go_through_brokers_at_least_once(node: moldau.testing.Node, target: CommitTarget) -> None:
    values = [f"v{n}" for n in range(50)]
    batches = {
        (target.topic, partition): some for partition, some in batches_of(target.topic, values).items()
    }
    with_client(node, lambda client: produce(client, batches))
    assert written(node, target.topic) == sorted(values)


def test_rows_are_partitioned_as_by_all_producers() -> None:
    routing = Routing(None, {"a": 10, "b": 1})
    builder = BatchBuilder(routing, Compression.NONE, 0, LIMIT)
    rows = [
        {"key": b"21", "value": "x", "topic": "a", "partition": None},
        {"key": b"21", "value": None, "topic": "a", "partition": 9},
        {"key": None, "value": "y", "topic": "b", "partition": None},
    ]
    builder.add(pa.RecordBatch.from_pylist(rows))
    # Kafka's own producer assigns the same partition to the key.
    assert {place: len(batches) for place, batches in builder.drain().items()} == {
        ("a", 0): 1,
        ("a", 9): 1,
        ("b", 0): 1,
    }
    for row, problem in [
        ({"value": "x", "topic": "c"}, "topic c does not exist"),
        ({"value": "x", "topic": "b", "partition": 1}, "no partition 1"),
        ({"value": "x"}, "names no topic"),
        ({"value": "x", "topic": "b", "headers": [{"key": None, "value": b""}]}, "header without a key"),
        ({"value": "x" * LIMIT, "topic": "b"}, "max.message.bytes is 1000000"),
    ]:
        with pytest.raises(ToolError, match=problem):
            add_and_take(builder, row)


def test_rows_without_a_key_begin_at_the_given_partition() -> None:
    places = []
    for first in range(3):
        builder = BatchBuilder(Routing("a", {"a": 3}), Compression.NONE, 0, LIMIT, first)
        builder.add(pa.record_batch({"value": ["x", "y"]}))
        places += list(builder.drain())
    assert sorted(places) == [("a", 0), ("a", 1), ("a", 2)]


def add_and_take(builder: BatchBuilder, row: dict[str, Any]) -> None:
    builder.add(pa.RecordBatch.from_pylist([row]))
    builder.drain()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> SinkStore:
    if request.param == "file":
        return open_sink_store(StorageSettings(f"file://{tmp_path}"))
    endpoint, bucket = request.getfixturevalue("s3_endpoint"), request.getfixturevalue("s3_bucket")
    keys = {"access.key.id": "test", "secret.access.key": "test"}
    return open_sink_store(StorageSettings(f"s3://{bucket}/wal", None, {"endpoint": endpoint, **keys}))


def test_only_the_first_writer_creates_an_object(store: SinkStore) -> None:
    async def use() -> None:
        assert await store.read("sink/q/1.intent") is None
        assert await store.create("sink/q/1.intent", b"first")
        assert not await store.create("sink/q/1.intent", b"second")
        assert await store.read("sink/q/1.intent") == b"first"
        await store.put("sink/q/1.done", b"x" * 100_000)
        assert len(await store.read("sink/q/1.done") or b"") == 100_000
        await store.delete(["sink/q/1.intent", "sink/q/1.done", "sink/q/absent"])
        assert await store.read("sink/q/1.intent") is None

    asyncio.run(use())
