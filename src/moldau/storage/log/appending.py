"""Appends to a partition log. A leader assigns offsets, and a follower receives batches that already have
offsets."""

import contextlib
from collections.abc import Callable
from struct import Struct

from moldau.protocol.partitions import TopicPartition
from moldau.records.batch import (
    CONTROL_BIT,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    checked_headers,
)
from moldau.records.errors import CorruptRecordError
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.buffers import Buffer
from moldau.storage.log.admission import Admitted, admit, is_slow_to_admit
from moldau.storage.log.append_info import AppendInfo, AppendOrigin
from moldau.storage.log.state.log_state import LogState
from moldau.storage.producers.producer_state import BatchMetadata
from moldau.storage.segments.batch_scan import checksum_in

pack_prefix = Struct(">qii").pack
"""Packs base offset, batch length and leader epoch, because a leader overwrites these bytes of a batch."""


class Appender:
    """Writes batches to the end of a log and updates the log's state. When a segment is full, it begins a new
    segment.

    Only bytes that must change are changed, and the batch is written without a copy.
    """

    def __init__(self, topic_partition: TopicPartition, now_ms: Callable[[], int], state: LogState) -> None:
        self._topic_partition = topic_partition
        self._now_ms = now_ms
        self._state = state

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

        ``buffer`` has the batches of ``headers``, already validated (``validate_produce``). A client's buffer
        has one batch. The buffer is not used after the call. ``append_time_ms`` is the result of
        :meth:`admit`, if it was called. A duplicate of one of its producer's last five batches is not
        appended. It gets the result of the first append. Raises ``KafkaError``: ``invalid_timestamp``,
        ``record_list_too_large``, ``invalid_record`` (no key in a compacted topic; recompression failed),
        ``message_too_large``, ``fenced_leader_epoch``, ``kafka_storage_error``, and errors of producers.
        """
        state, now_ms = self._state, self._now_ms()
        if state.access.failure is not None:
            state.access.check()
        segments = state.segments
        config = segments.config
        if append_time_ms is None:
            append_time_ms = NO_TIMESTAMP
            if origin is AppendOrigin.CLIENT:
                buffer, headers, append_time_ms = admit(config, buffer, headers, now_ms)
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        for header in headers:
            if header[9] >= 0:
                duplicate = (
                    state.producers.check(header, view, origin)
                    if header[5] & CONTROL_BIT
                    else state.producers.state.check(header, from_client=origin is AppendOrigin.CLIENT)
                )
                if duplicate is not None:
                    return self._duplicate_info(duplicate, append_time_ms)
        if leader_epoch != state.epochs.current:
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
        self.write(buffers, size_bytes, headers, first_offset, view)
        start_offset = state.offsets.log_start_offset
        return AppendInfo(
            first_offset, last_offset, append_time_ms, start_offset, max_timestamp_ms, size_bytes
        )

    def _duplicate_info(self, duplicate: BatchMetadata, append_time_ms: int) -> AppendInfo:
        return AppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            NO_TIMESTAMP if append_time_ms < 0 else duplicate.timestamp,
            self._state.offsets.log_start_offset,
            duplicate.timestamp,
            0,
            is_duplicate=True,
        )

    def write(
        self,
        buffers: list[Buffer],
        size_bytes: int,
        headers: list[BatchHeader],
        first_offset: int,
        view: memoryview,
    ) -> None:
        """Write batches, then update the log's state. If the write fails, nothing is changed."""
        active = self._state.segments.active
        try:
            position = active.write(buffers, size_bytes)
        except OSError as error:
            self._state.access.check_descriptors("appending to", error)
            with contextlib.suppress(OSError):
                active.file.truncate(active.size_bytes)
            self._state.access.fail("appending to", error)
        self.account(position, headers, first_offset, view)

    def account(self, position: int, headers: list[BatchHeader], first_offset: int, view: memoryview) -> None:
        """Update the log's state for the batches of ``headers``. Their bytes are ``view``, at ``position`` of
        the active segment."""
        segments = self._state.segments
        active = segments.active
        begin = position
        try:
            offset = first_offset
            for header in headers:
                last_offset = offset + header[6]
                batch_size_bytes = header[1] + 12
                active.note_batch(position, batch_size_bytes, last_offset, header[8])
                if header[9] >= 0 and not header[5] & CONTROL_BIT:
                    self._state.producers.state.apply(header, offset, header[8])
                elif header[9] >= 0:
                    start = position - begin
                    aborted = self._state.producers.appended(
                        header, offset, view[start : start + batch_size_bytes]
                    )
                    if aborted is not None:
                        active.transaction_index.append(aborted)
                position += batch_size_bytes
                offset = last_offset + 1
            segments.end_offset, segments.last_position = offset, position - batch_size_bytes
            if segments.keeps_checksum:
                segments.last_checksum = checksum_in(view, position - batch_size_bytes - begin)
        except OSError as error:
            with contextlib.suppress(OSError):
                active.file.truncate(active.size_bytes)
            self._state.access.fail("appending to", error)

    def admit(self, batch: Buffer, headers: list[BatchHeader], limit: int | None = None) -> Admitted:
        """Convert a client's batch to the form in which the topic stores the batch; see
        ``admission.admit``."""
        return admit(self._state.segments.config, batch, headers, self._now_ms(), limit)

    def is_slow_to_admit(self, header: BatchHeader) -> bool:
        """Whether :meth:`admit` must run on a worker, because it would block the event loop; see
        ``admission``."""
        return is_slow_to_admit(self._state.segments.config, header, self._now_ms())

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin a leader's epoch at the end of the log. Raises ``KafkaError(fenced_leader_epoch)`` for an
        old epoch."""
        if leader_epoch < self._state.epochs.current:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch,
                f"append with leader epoch {leader_epoch} after {self._state.epochs.current}",
            )
        self._state.epochs.begin(leader_epoch, self._state.segments.end_offset)

    def append_as_follower(self, buffer: Buffer) -> AppendInfo:
        """Append batches with their offsets and epochs unchanged. An incomplete batch at the end is ignored.

        Raises ``KafkaError(corrupt_message)`` for a wrong checksum. This error is also raised if an offset is
        below the end of the log or of the previous batch, or if an epoch is lower than the epoch before it.
        In all these cases nothing is appended.
        """
        self._state.access.check()
        view = memoryview(buffer)
        headers = checked_headers(view)
        end_offset, epoch, size_bytes = self._state.segments.end_offset, self._state.epochs.current, 0
        for header in headers:
            if header.base_offset < end_offset or header.partition_leader_epoch < epoch:
                raise CorruptRecordError(
                    f"{self._topic_partition}: batch of offset {header.base_offset} and epoch "
                    f"{header.partition_leader_epoch} cannot follow offset {end_offset - 1}, epoch {epoch}"
                )
            end_offset = header.base_offset + header.last_offset_delta + 1
            epoch = header.partition_leader_epoch
            size_bytes += header.batch_length + LOG_OVERHEAD_BYTES
        if not headers:
            end = self._state.segments.end_offset
            return AppendInfo(
                end, end - 1, NO_TIMESTAMP, self._state.offsets.log_start_offset, NO_TIMESTAMP, 0
            )
        max_timestamp_ms = max(header.max_timestamp for header in headers)
        self._append_all_given(headers, view[:size_bytes], max_timestamp_ms)
        return AppendInfo(
            headers[0].base_offset,
            headers[-1].last_offset,
            NO_TIMESTAMP,
            self._state.offsets.log_start_offset,
            max_timestamp_ms,
            size_bytes,
        )

    def _append_all_given(
        self, headers: list[BatchHeader], batches: memoryview, max_timestamp_ms: int
    ) -> None:
        """Append the batches in one write. They must have no gaps between their offsets, must have one known
        epoch, and must fit in the active segment."""
        now_ms = self._now_ms()
        first, last = headers[0], headers[-1]
        count = sum(header.last_offset_delta + 1 for header in headers)
        if (
            last.partition_leader_epoch == self._state.epochs.current
            and count == last.next_offset - first.base_offset
            and not self._state.segments.must_roll(len(batches), last.last_offset, max_timestamp_ms, now_ms)
        ):
            self.write([batches], len(batches), headers, first.base_offset, batches)
            return
        position = 0
        for header in headers:
            end = position + header.size_bytes
            self._append_given(header, batches[position:end], now_ms)
            position = end

    def _append_given(self, header: BatchHeader, batch: memoryview, now_ms: int) -> None:
        if header.partition_leader_epoch > self._state.epochs.current:
            self._state.epochs.begin(header.partition_leader_epoch, header.base_offset)
        segments = self._state.segments
        if segments.must_roll(len(batch), header.last_offset, header.max_timestamp, now_ms):
            overflows = header.last_offset - segments.end_offset >= 2**31
            self.roll(header.base_offset if overflows else None)
        self.write([batch], len(batch), [header], header.base_offset, batch)

    def roll(self, base_offset: int | None = None) -> None:
        """Begin a new segment at ``base_offset``. The default is the end of the log."""
        with self._state.access.disk_work("rolling"):
            segments = self._state.segments
            if segments.active.size_bytes:
                # Producers wait for this call. Therefore the snapshot is made durable later, by the flush of
                # the closed segment.
                self._state.producers.write_snapshot(segments.end_offset, durably=False)
            segments.roll(segments.end_offset if base_offset is None else base_offset)


def _too_large(size_bytes: int, segment_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.record_list_too_large,
        f"{size_bytes} bytes do not fit into a segment of {segment_bytes}",
    )
