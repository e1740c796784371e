"""Appending to a partition log, as the leader that assigns offsets or the follower that is given them."""

import contextlib
from struct import Struct

from moldau.records.batch import (
    CONTROL_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_batch,
    iter_headers,
)
from moldau.records.errors import CorruptRecordError
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.log.admission import Admitted, admit, takes_long
from moldau.storage.log.append_info import AppendInfo, AppendOrigin
from moldau.storage.log.state import LogState
from moldau.storage.producers.producer_state import BatchMetadata

pack_prefix = Struct(">qii").pack
"""Base offset, batch length and leader epoch: the bytes of a batch that a leader writes anew."""


class AppendingLog(LogState):
    """A log that grows. Only bytes that must change are patched; the rest is written where it lies."""

    def append_as_leader(
        self,
        buffer: Buffer,
        headers: list[BatchHeader],
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        append_time_ms: int | None = None,
    ) -> AppendInfo:
        """Assign offsets and append.

        ``buffer`` holds exactly the batches of ``headers``, validated (``validate_produce``); from a
        client it is exactly one. It is not kept. ``append_time_ms`` is that of :meth:`admit` when it has
        taken place. A duplicate of one of its producer's last five batches
        appends nothing and returns what the first append returned. Raises ``KafkaError`` with Kafka's
        code: ``invalid_timestamp``, ``record_list_too_large``, ``invalid_record`` (no key in a compacted
        topic; records that cannot be recompressed), ``message_too_large`` (once they are),
        ``fenced_leader_epoch``, the producer's codes, ``kafka_storage_error``.
        """
        self._check_online()
        now_ms = self._now_ms()
        config = self._config
        segments = self._segments
        if append_time_ms is None:
            append_time_ms = NO_TIMESTAMP
            if origin is AppendOrigin.CLIENT:
                buffer, headers, append_time_ms = admit(config, buffer, headers, now_ms)
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        for header in headers:
            if header[9] >= 0:
                duplicate = (
                    self.producers.check(header, view, origin)
                    if header[5] & CONTROL_BIT
                    else self.producers.state.check(header, from_client=origin is AppendOrigin.CLIENT)
                )
                if duplicate is not None:
                    return self._duplicate_info(duplicate, append_time_ms)
        if leader_epoch != self._last_epoch:
            self.begin_epoch(leader_epoch)
        first_offset = offset = segments.end_offset
        buffers: list[Buffer] = []
        size_bytes = 0
        for header in headers:
            length = header[1]
            end = size_bytes + 12 + length
            buffers.append(pack_prefix(offset, length, leader_epoch))
            buffers.append(view[size_bytes + 16 : end])
            offset += header[6] + 1
            size_bytes = end
        last_offset = offset - 1
        max_timestamp_ms = headers[0][8] if len(headers) == 1 else max(header[8] for header in headers)
        if size_bytes > config.segment_bytes and origin is AppendOrigin.CLIENT:
            raise _too_large(size_bytes, config.segment_bytes)
        if segments.must_roll(size_bytes, last_offset, max_timestamp_ms, now_ms):
            self.roll()
        self._write(buffers, size_bytes, headers, first_offset, view)
        return AppendInfo(
            first_offset, last_offset, append_time_ms, self.log_start_offset, max_timestamp_ms, size_bytes
        )

    def _duplicate_info(self, duplicate: BatchMetadata, append_time_ms: int) -> AppendInfo:
        return AppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            NO_TIMESTAMP if append_time_ms < 0 else duplicate.timestamp,
            self.log_start_offset,
            duplicate.timestamp,
            0,
            is_duplicate=True,
        )

    def _write(
        self,
        buffers: list[Buffer],
        size_bytes: int,
        headers: list[BatchHeader],
        first_offset: int,
        view: memoryview,
    ) -> None:
        """Write batches, then account for them; nothing is changed when the write fails."""
        active = self._segments.active
        try:
            position = active.write(buffers, size_bytes)
        except OSError as error:
            self.check_descriptors("appending to", error)
            with contextlib.suppress(OSError):
                active.file.truncate(active.size_bytes)
            self.fail("appending to", error)
        self._account(position, headers, first_offset, view)

    def _account(
        self, position: int, headers: list[BatchHeader], first_offset: int, view: memoryview
    ) -> None:
        """The batches of ``headers``, which are ``view``, lie at ``position`` of the active segment."""
        segments = self._segments
        active = segments.active
        begin = position
        try:
            offset = first_offset
            for header in headers:
                last_offset = offset + header[6]
                batch_size_bytes = header[1] + 12
                active.note_batch(position, batch_size_bytes, last_offset, header[8])
                if header[9] >= 0 and not header[5] & CONTROL_BIT:
                    self.producers.state.apply(header, offset, header[8])
                elif header[9] >= 0:
                    start = position - begin
                    aborted = self.producers.appended(header, offset, view[start : start + batch_size_bytes])
                    if aborted is not None:
                        active.transaction_index.append(aborted)
                position += batch_size_bytes
                offset = last_offset + 1
            segments.end_offset = offset
        except OSError as error:
            with contextlib.suppress(OSError):
                active.file.truncate(active.size_bytes)
            self.fail("appending to", error)

    def admit(self, batch: Buffer, headers: list[BatchHeader], limit: int | None = None) -> Admitted:
        """A client's batch as the topic wants it stored; see ``log_admission.admit``."""
        return admit(self._config, batch, headers, self._now_ms(), limit)

    def takes_long(self, header: BatchHeader) -> bool:
        """Whether :meth:`admit` is for a worker rather than the event loop; see ``log_admission``."""
        return takes_long(self._config, header, self._now_ms())

    def begin_epoch(self, leader_epoch: int) -> None:
        """A leader's epoch begins at the end. Raises ``KafkaError(fenced_leader_epoch)`` for an old one."""
        if leader_epoch < self._last_epoch:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch,
                f"append with leader epoch {leader_epoch} after {self._last_epoch}",
            )
        self._assign_epoch(leader_epoch, self.log_end_offset)

    def append_as_follower(self, buffer: Buffer) -> AppendInfo:
        """Append batches whose offsets and epochs are given; a trailing partial batch is ignored.

        Raises ``KafkaError(corrupt_message)`` for a wrong checksum and for offsets or epochs that do
        not ascend from the log's end; then nothing is appended.
        """
        self._check_online()
        view = memoryview(buffer)
        headers: list[BatchHeader] = []
        end_offset, epoch, size_bytes = self.log_end_offset, self._last_epoch, 0
        for position, header in iter_headers(view):
            check_batch(view, position)
            if header.base_offset < end_offset or header.partition_leader_epoch < epoch:
                raise CorruptRecordError(
                    f"{self.topic_partition}: batch of offset {header.base_offset} and epoch "
                    f"{header.partition_leader_epoch} cannot follow offset {end_offset - 1}, epoch {epoch}"
                )
            end_offset, epoch = header.next_offset, header.partition_leader_epoch
            size_bytes = position + header.size_bytes
            headers.append(header)
        if not headers:
            end = self.log_end_offset
            return AppendInfo(end, end - 1, NO_TIMESTAMP, self.log_start_offset, NO_TIMESTAMP, 0)
        max_timestamp_ms = max(header.max_timestamp for header in headers)
        self._append_all_given(headers, view[:size_bytes], max_timestamp_ms)
        return AppendInfo(
            headers[0].base_offset,
            headers[-1].last_offset,
            NO_TIMESTAMP,
            self.log_start_offset,
            max_timestamp_ms,
            size_bytes,
        )

    def _append_all_given(
        self, headers: list[BatchHeader], batches: memoryview, max_timestamp_ms: int
    ) -> None:
        """In one write if they have no holes, one known epoch, and room in the active segment."""
        now_ms = self._now_ms()
        first, last = headers[0], headers[-1]
        count = sum(header.last_offset_delta + 1 for header in headers)
        if (
            last.partition_leader_epoch == self._last_epoch
            and count == last.next_offset - first.base_offset
            and not self._segments.must_roll(len(batches), last.last_offset, max_timestamp_ms, now_ms)
        ):
            self._write([batches], len(batches), headers, first.base_offset, batches)
            return
        position = 0
        for header in headers:
            end = position + header.size_bytes
            self._append_given(header, batches[position:end], now_ms)
            position = end

    def _append_given(self, header: BatchHeader, batch: memoryview, now_ms: int) -> None:
        if header.partition_leader_epoch > self._last_epoch:
            self._assign_epoch(header.partition_leader_epoch, header.base_offset)
        segments = self._segments
        if segments.must_roll(len(batch), header.last_offset, header.max_timestamp, now_ms):
            overflows = header.last_offset - segments.end_offset >= 2**31
            self.roll(header.base_offset if overflows else None)
        self._write([batch], len(batch), [header], header.base_offset, batch)

    @property
    def must_flush(self) -> bool:
        """Whether ``flush.messages`` wants a flush before an append is acknowledged."""
        return self._segments.end_offset - self.flushed_offset >= self._config.flush_messages

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment, at the end unless said otherwise."""
        raise NotImplementedError


def _too_large(size_bytes: int, segment_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.record_list_too_large,
        f"{size_bytes} bytes do not fit into a segment of {segment_bytes}",
    )
