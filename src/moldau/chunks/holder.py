"""Reads of the inactive chunks on this broker's disks."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from crc32c import crc32c

from moldau.chunks.calls import (
    HAND_OVER_FILE,
    ChunkFileFetch,
    ChunkFilePiece,
    ChunkRead,
    ChunkRecords,
    ChunkSearch,
)
from moldau.chunks.hand_overs import HandOvers
from moldau.protocol.partitions import TopicPartition
from moldau.replication.lookups.record_lookup import RecordLookup
from moldau.replication.partition_interface import AbortedTransaction, FoundOffset
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.storage.chunks.chunk_store import ChunkId, ChunkStore
from moldau.storage.folders.log_folders import NO_ROOM_FOR_MORE
from moldau.storage.folders.partition_metadata import MalformedMetadataError
from moldau.storage.log.append_info import ReadResult
from moldau.storage.log.partition_log import PartitionLog

_UNREADABLE: Final = frozenset({ErrorCode.kafka_storage_error, ErrorCode.corrupt_message})

PIECE_MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a piece of a file in a response."""


def _is_lack_of_resources(cause: BaseException | None) -> bool:
    """Whether an error says nothing about the copy, because the process lacks file descriptors or the disk
    lacks space."""
    return isinstance(cause, OSError) and cause.errno in NO_ROOM_FOR_MORE


class ChunkHolder:
    """Reads and searches chunks. A chunk does not change, so no leader epoch is checked.

    If the copy of a chunk cannot be read, ``on_unreadable`` is called, and the error of the disk is raised as
    a ``KafkaError``.
    """

    def __init__(self, machine: Machine, store: ChunkStore, hand_overs: HandOvers) -> None:
        self._machine = machine
        self._store = store
        self._hand_overs = hand_overs
        self.on_unreadable: Callable[[ChunkId], None] = lambda _: None
        """Called with a chunk of this broker that cannot be read."""

    def has(self, chunk: ChunkId) -> bool:
        """Whether this broker has a copy of a chunk."""
        return chunk in self._store

    async def check(self, topic: str, chunk: ChunkId) -> None:
        """Raise ``KafkaError`` if the copy of a chunk cannot be opened, or if its last records are
        missing."""
        with self._readable(chunk):
            await self._log(topic, chunk)

    async def read(self, topic: str, wanted: ChunkRead) -> ChunkRecords:
        """Whole batches, beginning with the batch that contains ``fetch_offset``. Raises ``KafkaError``."""
        chunk = ChunkId(*wanted[:3])
        with self._readable(chunk):
            return self._read(await self._log(topic, chunk), wanted)

    @staticmethod
    def _read(log: PartitionLog, wanted: ChunkRead) -> ChunkRecords:
        offset, end_offset = wanted.fetch_offset, log.log_end_offset
        if wanted.end_offset >= 0:
            end_offset = min(end_offset, wanted.end_offset)
        result = ReadResult([], 0, max(offset, end_offset), 0, 0)
        if wanted.max_bytes > 0 or wanted.min_one_batch:
            start_offset = max(offset, log.local_log_start_offset)
            result = log.read(
                start_offset,
                wanted.max_bytes,
                upper_bound_offset=end_offset,
                min_one_batch=wanted.min_one_batch,
            )
        if not wanted.with_aborted:
            return ChunkRecords(result.views, result.size_bytes, result.next_offset)
        until = result if result.size_bytes else result._replace(next_offset=wanted.end_offset)
        aborted = [
            AbortedTransaction(each.producer_id, each.first_offset)
            for each in log.aborted_transactions(offset, until)
        ]
        unstable = log.producers.state.first_unstable_offset
        opened = -1 if unstable is None else unstable
        return ChunkRecords(result.views, result.size_bytes, result.next_offset, aborted, opened)

    async def first_offset(self, topic: str, chunk: ChunkId) -> int:
        """The first offset of this broker's copy. It is higher than the chunk's first offset if this broker
        removed segments at the beginning of the log because they are in the remote tier. Raises
        ``KafkaError``.
        """
        with self._readable(chunk):
            return (await self._log(topic, chunk)).local_log_start_offset

    async def open_offset(self, topic: str, chunk: ChunkId) -> int:
        """The first offset of a transaction that is open at the end of a chunk; -1 if there is no such
        transaction. Raises ``KafkaError``."""
        with self._readable(chunk):
            unstable = (await self._log(topic, chunk)).producers.state.first_unstable_offset
            return -1 if unstable is None else unstable

    async def find(self, topic: str, wanted: ChunkSearch, lookup: RecordLookup) -> FoundOffset:
        """Find the first record whose timestamp is at or after a time, and whose offset is at least
        ``from_offset``. Raises ``KafkaError``."""
        chunk = ChunkId(*wanted[:3])
        with self._readable(chunk):
            return await self._find(topic, chunk, wanted, lookup)

    async def _find(
        self, topic: str, chunk: ChunkId, wanted: ChunkSearch, lookup: RecordLookup
    ) -> FoundOffset:
        log = await self._log(topic, chunk)
        from_offset = max(wanted.start_offset, wanted.from_offset)
        offset, end_offset = max(from_offset, log.local_log_start_offset), log.log_end_offset
        while (step := log.timestamp_step(wanted.timestamp, offset, end_offset)) is not None:
            if step.batch is not None:
                found = await lookup.at_or_after(step.batch, wanted.timestamp, from_offset)
                if found is not None:
                    return FoundOffset(found[0], found[1], log.epoch_for_offset(found[0]))
            offset = step.next_offset
            await asyncio.sleep(0)
            if log.is_offline:
                # The log was closed meanwhile, because other chunks were read or because this copy is
                # removed. This does not mean that the copy cannot be read.
                log = await self._log(topic, chunk)
        return FoundOffset()

    async def fetch_file(self, wanted: ChunkFileFetch) -> ChunkFilePiece:
        """A piece of a chunk's file, or the list of files. Raises ``KafkaError``."""
        chunk = ChunkId(*wanted[:3])
        with self._readable(chunk):
            return await self._piece(chunk, wanted)

    async def _piece(self, chunk: ChunkId, wanted: ChunkFileFetch) -> ChunkFilePiece:
        if wanted.name == HAND_OVER_FILE:
            return self._handed_over(chunk, wanted)
        if not wanted.name:
            return ChunkFilePiece(await self._store.files(chunk))
        size_bytes = min(wanted.max_bytes, PIECE_MAX_BYTES)
        content = await self._store.read_file(chunk, wanted.name, wanted.position, size_bytes)
        return ChunkFilePiece({}, content, crc32c(content))

    def _handed_over(self, chunk: ChunkId, wanted: ChunkFileFetch) -> ChunkFilePiece:
        content = self._hand_overs.encoded(*chunk)
        if content is None:
            reason = f"no state at {chunk.start_offset} was handed over to this broker"
            raise KafkaError(ErrorCode.resource_not_found, reason)
        end = wanted.position + min(wanted.max_bytes, PIECE_MAX_BYTES)
        piece = content[max(0, wanted.position) : end]
        return ChunkFilePiece({}, piece, crc32c(piece))

    def lookup(self, topic: str, partition: int) -> RecordLookup:
        """An object for a search by timestamp that another broker has requested."""
        return RecordLookup(self._machine, None, f"{topic}-{partition}")

    @contextmanager
    def _readable(self, chunk: ChunkId) -> Iterator[None]:
        """Report the chunk if the ``with`` block cannot read it. Raises ``KafkaError``."""
        try:
            yield
            return
        except KafkaError as failure:
            error = failure
        except (OSError, MalformedMetadataError) as failure:
            error = KafkaError(ErrorCode.kafka_storage_error, str(failure))
            error.__cause__ = failure
        if error.code in _UNREADABLE and not _is_lack_of_resources(error.__cause__):
            self.on_unreadable(chunk)
        raise error

    async def _log(self, topic: str, chunk: ChunkId) -> PartitionLog:
        if chunk not in self._store:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{topic}-{chunk.partition}: no chunk {chunk.start_offset} here",
            )
        return await self._store.open(TopicPartition(topic, chunk.partition), chunk)
