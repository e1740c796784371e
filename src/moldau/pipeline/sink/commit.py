"""Exactly once: rows become one WAL object, which one coordinator commits as a whole.

Tasks leave parts in the store, which nobody refers to. The driver of a streaming query then

1. joins the parts to one WAL object under a new key,
2. creates the *intent* of (query, batch id), an object that holds that key and that only one driver can make,
3. commits the object that the intent names: a coordinator answers a repeat from its state,
4. writes that the batch is *done*.

A driver that comes back finds the intent, or that all is done, and goes on with what was named first,
whatever its own tasks have made: their parts are removed. So a batch is in the topic whole and once,
wherever a driver is killed, and if two are at it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from moldau.client.cluster import Client, Endpoint
from moldau.client.errors import ToolError
from moldau.coordinators.diskless import wire
from moldau.coordinators.diskless.calls import CREATE_TIME, LOG_APPEND_TIME, BatchToCommit, CommitFileCall
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.wal import parse_object
from moldau.objects.factory import StorageSettings
from moldau.pipeline.reading.coordinator_calls import CoordinatorCalls
from moldau.pipeline.sink.rows import batches_of, grouped, lay_out_object
from moldau.pipeline.sink.store import SinkStore
from moldau.runtime.clock import Clock
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

PREFIX: Final = "sink"
OBJECT_BYTES_MAX: Final = 256 * 1024**2
"""Of a driver's memory. A streaming batch must fit into one object: else it could not be committed whole."""
MARKERS_KEPT: Final = 100
COMMIT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """A diskless topic of one coordinator; it travels to tasks."""

    topic: str
    topic_id: str
    coordinator_id: int
    storage: StorageSettings
    log_append_time: bool


@dataclass(frozen=True, slots=True)
class Part:
    """An object that a task left for the driver."""

    key: str
    size_bytes: int


class SinkCommitter:
    """Commits what tasks wrote. Raises ``StorageError``, ``KafkaError`` and :class:`ToolError`."""

    def __init__(
        self, client: Client, store: SinkStore, target: CommitTarget, clock: Clock, entropy: Entropy
    ) -> None:
        self._client = client
        self._coordinators = CoordinatorCalls(client)
        self._store = store
        self._target = target
        self._clock = clock
        self._entropy = entropy

    async def commit_batch(self, query_id: str, batch_id: int, parts: Sequence[Part]) -> None:
        """Commit a batch of a streaming query, unless it was committed before."""
        intent, done = _marker(query_id, batch_id, "intent"), _marker(query_id, batch_id, "done")
        if await self._store.read(done) is None:
            named = await self._store.read(intent)
            if named is None and parts:
                named = await self._name(intent, parts)
            if named is not None:
                await self._commit_named(named.decode(), intent)
                await self._store.put(done, b"done")
        await self.discard(parts)
        old = batch_id - MARKERS_KEPT
        await self._store.delete([_marker(query_id, old, "intent"), _marker(query_id, old, "done")])

    async def commit_job(self, parts: Sequence[Part]) -> None:
        """Commit the rows of a batch job, object after object."""
        for keys in grouped([(part.key, part.size_bytes) for part in parts], OBJECT_BYTES_MAX):
            key, content = await self._join(keys)
            await self._commit(key, content)
        await self.discard(parts)

    async def discard(self, parts: Sequence[Part]) -> None:
        """Remove parts: they are never what is committed."""
        await self._store.delete([part.key for part in parts])

    async def _name(self, intent: str, parts: Sequence[Part]) -> bytes:
        size = sum(part.size_bytes for part in parts)
        if size > OBJECT_BYTES_MAX:
            raise ToolError(
                f"a batch of {size} bytes cannot be committed at once ({OBJECT_BYTES_MAX} can):"
                " let the source give less at a time, for example by maxOffsetsPerTrigger"
            )
        key, _ = await self._join([part.key for part in parts])
        if await self._store.create(intent, key.encode()):
            return key.encode()
        named = await self._store.read(intent)
        if named is None:
            raise ToolError(f"{intent} was there and is gone: another driver is at the same query")
        if named.decode() != key:  # a store that repeats calls by itself may report our own as another's
            await self._store.delete([key])
        return named

    async def _join(self, keys: Sequence[str]) -> tuple[str, bytes]:
        """Parts as one object of the WAL, stored under a new key."""
        contents = []
        for key in keys:
            content = await self._store.read(key)
            if content is None:
                raise ToolError(f"{key} is gone, which a task of this batch wrote")
            contents.append(content)
        created_ms = self._clock.now_ms()
        broker_id = (await self._client.metadata([])).brokers[0].node_id
        joined = lay_out_object(
            UUID(self._target.topic_id), batches_of(contents), created_ms=created_ms, broker_id=broker_id
        )
        key = new_object_key(created_ms, broker_id, self._entropy)
        await self._store.put(key, joined)
        return key, joined

    async def _commit_named(self, key: str, intent: str) -> None:
        (known,) = await self._coordinators.describe_files(self._target.coordinator_id, [key])
        if known.is_known:
            return  # before the driver was killed
        content = await self._store.read(key)
        if content is None:
            # Freed after it was committed, or an orphan that never was: both take longer than the grace.
            raise ToolError(
                f"whether {key} was committed is not known any more: look whether its records are in"
                f" {self._target.topic}, and remove {intent} to write them again"
            )
        await self._commit(key, content)

    async def _commit(self, key: str, content: bytes) -> None:
        """Until the outcome is known."""
        target = self._target
        type_of_time = LOG_APPEND_TIME if target.log_append_time else CREATE_TIME
        found = parse_object(content, len(content))
        call = CommitFileCall(
            object_key=key,
            size_bytes=len(content),
            created_ms=self._clock.now_ms(),
            uploader_broker_id=found.broker_id,
            batches=[
                BatchToCommit(
                    one.topic_id, one.partition_index, 0, one.byte_offset, one.size_bytes,
                    one.last_offset_delta, one.records_count, one.max_timestamp_ms, type_of_time,
                )
                for one in found.batches()
            ],
            owner_ids=(target.coordinator_id,),
        )  # fmt: skip
        request = wire.commit_request(target.coordinator_id, call)

        async def ask(endpoint: Endpoint) -> None:
            response = await self._client.ask(request, broker=endpoint, version=COMMIT_VERSION)
            if response.error_code is not ErrorCode.none:
                raise KafkaError(response.error_code, response.error_message or response.error_code.name)
            for one in wire.commit_result(response).batches:
                if one.error is not ErrorCode.none:
                    raise ToolError(f"{target.topic}: {one.message or one.error.name}")

        await self._coordinators.asked(target.coordinator_id, ask)


def _marker(query_id: str, batch_id: int, kind: str) -> str:
    return f"{PREFIX}/{query_id}/{batch_id:020d}.{kind}"
