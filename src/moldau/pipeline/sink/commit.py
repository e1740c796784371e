"""Writing exactly once: rows become one WAL object, which one coordinator commits as a whole.

Tasks write parts to the store. No object refers to these parts. The driver of a streaming query then does
four steps:

1. It joins the parts to one WAL object under a new key.
2. It creates the *intent* of (query, batch id). This is an object that contains the new key, and that only
   one driver can create.
3. It commits the object that the intent names. If a commit is repeated, the coordinator returns the result
   of the first commit.
4. It creates an object which says that the batch is *done*.

A restarted driver finds the intent, or finds that the batch is done. It continues with the first intent, and
removes the parts that its own tasks have written. Therefore a batch is in the topic completely and once.
This is true even if a driver is killed at any step, or if two drivers run.

If the coordinator has refused a batch, the batch will never be committed (for example because its topic was
deleted). An object beside the intent stores the refusal, and the intent is kept. A restarted driver then
names its own object in an intent of the next *generation*. Again only one driver can create this intent.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from moldau.client.cluster import Client
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.calls import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    BatchToCommit,
    CommitFileCall,
)
from moldau.coordinators.diskless.calls.asking import DisklessCoordinatorCalls
from moldau.diskless.object_keys import new_object_key
from moldau.diskless.wal import parse_object
from moldau.objects.factory import StorageSettings
from moldau.pipeline.sink.rows import batches_of, grouped, lay_out_object
from moldau.pipeline.sink.store import SinkStore
from moldau.pipeline.sink_keys import SINK_PREFIX
from moldau.runtime.clock import Clock
from moldau.runtime.entropy import Entropy
from moldau.runtime.errors import ErrorCode

logger = logging.getLogger(__name__)

PARTLY: Final = b"partly "
"""The first bytes of a stored refusal, if other rows of the batch were committed."""
OBJECT_BYTES_MAX: Final = 256 * 1024**2
"""Maximum size of an object. It is limited because the driver has the whole object in memory. A streaming
batch must fit into one object, so that it is committed as a whole."""
MARKERS_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """A diskless topic whose partitions have one coordinator. The object is sent to tasks."""

    topic: str
    topic_id: str
    coordinator_id: int
    storage: StorageSettings
    log_append_time: bool


@dataclass(frozen=True, slots=True)
class Part:
    """An object that a task has stored for the driver."""

    key: str
    size_bytes: int


class RefusedError(ToolError):
    """A coordinator has refused all rows of a batch, or some of them, and will never commit the refused
    rows."""

    def __init__(self, reason: str, *, is_partial: bool) -> None:
        super().__init__(reason)
        self.is_partial = is_partial


class _Named(NamedTuple):
    """The object key that an intent contains, the generation of the intent, and whether this driver created
    the intent."""

    key: str
    generation: int
    is_ours: bool


class _Markers(NamedTuple):
    """Keys of the objects that record the progress of a batch."""

    query_id: str
    batch_id: int

    @property
    def done(self) -> str:
        return self._key("done")

    def intent(self, generation: int) -> str:
        return self._key(f"intent-{generation}" if generation else "intent")

    def refused(self, generation: int) -> str:
        return self._key(f"refused-{generation}")

    def _key(self, kind: str) -> str:
        return f"{SINK_PREFIX}/{self.query_id}/{self.batch_id:020d}.{kind}"


class SinkCommitter:
    """Commits the parts that tasks wrote. Raises ``StorageError``, ``KafkaError`` and :class:`ToolError`."""

    def __init__(
        self, client: Client, store: SinkStore, target: CommitTarget, clock: Clock, entropy: Entropy
    ) -> None:
        self._client = client
        self._coordinators = DisklessCoordinators(client)
        self._store = store
        self._target = target
        self._clock = clock
        self._entropy = entropy

    async def commit_batch(self, query_id: str, batch_id: int, parts: Sequence[Part]) -> None:
        """Commit a batch of a streaming query, unless the batch was committed before.

        Raises :class:`RefusedError` when the coordinator refuses these rows.
        """
        markers = _Markers(query_id, batch_id)
        if await self._store.read(markers.done) is None:
            named = await self._last_named(markers)
            if named is None and parts:
                named = await self._name(markers.intent(0), 0, parts)
            if named is not None:
                await self._commit_last(markers, named, parts)
                await self._store.put(markers.done, b"done")
        await self.discard(parts)
        await self._forget(_Markers(query_id, batch_id - MARKERS_KEPT))

    async def _last_named(self, markers: "_Markers") -> "_Named | None":
        last, generation = None, 0
        while (key := await self._store.read(markers.intent(generation))) is not None:
            last = _Named(key.decode(), generation, is_ours=False)
            generation += 1
        return last

    async def _commit_last(self, markers: "_Markers", named: "_Named", parts: Sequence[Part]) -> None:
        """Commit the object in the last intent. If the coordinator refused that object, commit the parts of
        this driver's own tasks."""
        while True:
            refused = await self._store.read(markers.refused(named.generation))
            if refused is None:
                try:
                    await self._commit_named(named.key, markers.intent(named.generation))
                    return
                except RefusedError as error:
                    refused = (PARTLY if error.is_partial else b"") + str(error).encode()
                    await self._store.put(markers.refused(named.generation), refused)
            if refused.startswith(PARTLY):
                raise RefusedError(
                    f"{refused.removeprefix(PARTLY).decode()}; other rows of the batch are in the topic: when"
                    f" you have seen to these, write an object {markers.done}",
                    is_partial=True,
                )
            if named.is_ours or not parts:
                raise RefusedError(refused.decode(), is_partial=False)
            logger.warning("%s was refused, and is written again: %s", named.key, refused.decode())
            generation = named.generation + 1
            named = await self._name(markers.intent(generation), generation, parts)

    async def _forget(self, markers: "_Markers") -> None:
        """Remove the objects of an old batch. Most batches have one generation."""
        old = [markers.intent(0), markers.done]
        generation = 0
        while await self._store.read(markers.refused(generation)) is not None:
            old += [markers.refused(generation), markers.intent(generation + 1)]
            generation += 1
        await self._store.delete(old)

    async def commit_job(self, parts: Sequence[Part]) -> None:
        """Commit the rows of a batch job, one object after the other."""
        for keys in grouped([(part.key, part.size_bytes) for part in parts], OBJECT_BYTES_MAX):
            key, content = await self._join(keys)
            await self._commit(key, content)
        await self.discard(parts)

    async def discard(self, parts: Sequence[Part]) -> None:
        """Remove parts. Parts are never committed themselves, so this is safe."""
        await self._store.delete([part.key for part in parts])

    async def _name(self, intent: str, generation: int, parts: Sequence[Part]) -> "_Named":
        size = sum(part.size_bytes for part in parts)
        if size > OBJECT_BYTES_MAX:
            raise ToolError(
                f"a batch of {size} bytes cannot be committed at once ({OBJECT_BYTES_MAX} can):"
                " let the source give less at a time, for example by maxOffsetsPerTrigger"
            )
        key, _ = await self._join([part.key for part in parts])
        if await self._store.create(intent, key.encode()):
            return _Named(key, generation, is_ours=True)
        named = await self._store.read(intent)
        if named is None:
            raise ToolError(f"{intent} was there and is gone: another driver is at the same query")
        # If the store's client repeats a request whose response was lost, the store reports that the object
        # exists, although this driver created it. The content shows whether this is the case.
        if named.decode() != key:
            await self._store.delete([key])
        return _Named(named.decode(), generation, is_ours=named.decode() == key)

    async def _join(self, keys: Sequence[str]) -> tuple[str, bytes]:
        """Join parts to one WAL object, and store it under a new key."""
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
            return  # the object was committed before the driver was killed
        content = await self._store.read(key)
        if content is None:
            # The object does not exist any more. It was deleted after its commit, or it was deleted as an
            # orphan without a commit. In both cases more than the grace period has passed.
            raise ToolError(
                f"whether {key} was committed is not known any more: look whether its records are in"
                f" {self._target.topic}, and remove {intent} to write them again"
            )
        await self._commit(key, content)

    async def _commit(self, key: str, content: bytes) -> None:
        """Commit an object. The request is repeated until the outcome is known."""
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

        async def commit(coordinators: DisklessCoordinatorCalls) -> None:
            answers = (await coordinators.commit_file(target.coordinator_id, call)).batches
            refused = [one for one in answers if one.error is not ErrorCode.none]
            if refused:
                reason = f"{target.topic}: {refused[0].message or refused[0].error.name}"
                raise RefusedError(reason, is_partial=len(refused) < len(answers))

        await self._coordinators.asked(target.coordinator_id, commit)
