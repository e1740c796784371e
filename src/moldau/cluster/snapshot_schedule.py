"""Writes a snapshot of the image from time to time, so that the metadata log can be pruned (KIP-630)."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice

from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.image_records import encode_record, to_records
from moldau.cluster.metadata_log import MetadataBatch, MetadataLog, Value
from moldau.cluster.publisher import MetadataPublisher
from moldau.runtime import KafkaError

logger = logging.getLogger(__name__)

BATCH_RECORDS = 128
"""Number of records in a batch of the snapshot. It takes about a millisecond to write such a batch. Other
tasks of the event loop run between two batches. So a request is delayed by at most three batches: one before
its bytes are read, one before its handler runs, and one before its response is sent."""


class SnapshotGenerator:
    """A listener of the metadata log. Add this listener *after* the publisher.

    A snapshot is due after ``bytes_between`` bytes of records, or after ``interval_ms`` if there is at least
    one new record. The image is immutable, so commits continue while the snapshot is written.
    """

    def __init__(
        self, log: MetadataLog, publisher: MetadataPublisher, *, bytes_between: int, interval_ms: int
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._bytes_between = bytes_between
        self._interval_ms = interval_ms
        self._bytes_since = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """Nothing is done, because every node writes its own snapshots, independently of the leader."""

    def on_snapshot(self, end_offset: int, epoch: int, timestamp_ms: int, values: Iterable[Value]) -> None:
        self._bytes_since = 0
        self._cancel_timer()

    def on_commit(self, batches: Sequence[MetadataBatch]) -> None:
        self._bytes_since += sum(batch.size_bytes for batch in batches)
        if self._bytes_since >= self._bytes_between:
            self.generate()
        elif self._timer is None and self._bytes_since and self._interval_ms > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_ms / 1000, self.generate)

    def generate(self) -> None:
        """Begin a snapshot of the committed state, unless another snapshot is being written.

        No snapshot is written while the log has a feature level that only a newer version of Moldau supports.
        Records of the newer version may have fields that this version does not know, so they would be missing
        in the snapshot.
        """
        self._cancel_timer()
        if self._writing is None and self._publisher.is_understood:
            self._bytes_since = 0
            self._writing = asyncio.get_running_loop().create_task(self._write(self._publisher.image))
            self._writing.add_done_callback(self._written)

    async def close(self) -> None:
        """Stop. An incomplete snapshot is deleted."""
        self._cancel_timer()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self, image: MetadataImage) -> None:
        provenance = image.provenance
        writer = self._log.create_snapshot(provenance.offset + 1, provenance.epoch, provenance.timestamp_ms)
        if writer is None:
            return
        try:
            records = to_records(image)
            while batch := list(islice(records, BATCH_RECORDS)):
                writer.append([encode_record(record, image.metadata_version) for record in batch])
                await asyncio.sleep(0)
                await writer.settle()
            await writer.freeze()
            logger.info("metadata snapshot written up to offset %d", provenance.offset)
        finally:
            writer.abandon()

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._writing = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, KafkaError | OSError):
            logger.warning("metadata snapshot could not be written: %s", error)
        elif error is not None:
            logger.error("metadata snapshot failed", exc_info=error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
