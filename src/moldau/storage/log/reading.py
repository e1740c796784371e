"""Reads a partition log. It finds batches by offset, aborted transactions, and records by timestamp."""

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.files.disk import FileRange
from moldau.storage.log.append_info import AbortedEntry, ReadResult
from moldau.storage.log.state.log_state import LogState
from moldau.storage.segments.timestamp_search import Step, latest_batch, search_step


class LogReader:
    """Serves reads from the segments of one log. It changes nothing."""

    def __init__(self, topic_partition: TopicPartition, state: LogState) -> None:
        self._topic_partition = topic_partition
        self._state = state

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound_offset: int | None = None,
        min_one_batch: bool = True,
        is_loaded: bool = False,
    ) -> ReadResult:
        """Whole batches below the upper limit, beginning with the batch that contains ``offset``.

        The result has at most ``max_bytes``. With ``min_one_batch`` it has the first batch even if that batch
        is larger. The views stay valid until they are released, unless their bytes are truncated. Therefore a
        reader above the high watermark copies the bytes before the next truncation. ``is_loaded`` means that
        the bytes were loaded from the disk for this read.

        Raises ``KafkaError(offset_out_of_range)`` below the log's start or above its end. Raises
        ``KafkaError(offset_moved_to_tiered_storage)`` for records that are only in the remote tier.
        """
        access, segments = self._state.access, self._state.segments
        if access.failure is not None:
            access.check()
        end_offset, start_offset = segments.end_offset, self._state.offsets.log_start_offset
        if not start_offset <= offset <= end_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self._topic_partition}: {offset} is not in [{start_offset}, {end_offset}]",
            )
        if offset < segments.segments[0].base_offset:
            raise KafkaError(ErrorCode.offset_moved_to_tiered_storage, f"{self._topic_partition}: {offset}")
        if upper_bound_offset is None or upper_bound_offset > end_offset:
            upper_bound_offset = end_offset
        if offset >= upper_bound_offset:
            return ReadResult([], 0, offset, segments.active.base_offset, segments.active.size_bytes)
        try:
            return segments.read(offset, max_bytes, upper_bound_offset, min_one_batch, is_loaded)
        except OSError as error:
            access.check_descriptors("reading", error)
            access.fail("reading", error)

    def cold_range(self, offset: int, max_bytes: int) -> FileRange | None:
        """Return bytes that must be loaded from the disk before a read of ``max_bytes`` from ``offset`` can
        continue without waiting. The result is None if no such bytes were found, or if the log cannot be
        read at this offset.

        When the bytes are loaded, the caller asks again.
        """
        state = self._state
        segments = state.segments
        if state.access.failure is not None or not (
            segments.segments[0].base_offset <= offset < segments.end_offset
        ):
            return None
        try:
            return segments.cold_range(offset, max_bytes)
        except OSError:
            return None  # the read will find the same error and handle it

    def aborted_transactions(self, offset: int, result: ReadResult) -> list[AbortedEntry]:
        """The aborted transactions with records in the result of a read from ``offset``."""
        found: list[AbortedEntry] = []
        segments = self._state.segments
        for segment in segments.segments[segments.index_holding(offset) :]:
            for transaction in segment.transaction_index.ended_from(offset):
                if transaction.first_offset < result.next_offset:
                    found.append(transaction)
                if transaction.last_stable_offset >= result.next_offset:
                    return found
        return found

    def timestamp_step(self, timestamp_ms: int, start_offset: int, end_offset: int) -> Step | None:
        """Do one step of a search by timestamp. The batch in the result is valid until the log is changed."""
        with self._state.access.disk_work("reading"):
            return search_step(self._state.segments, timestamp_ms, start_offset, end_offset)

    def latest_batch(self, end_offset: int) -> memoryview | None:
        """Return the batch with the largest timestamp below ``end_offset``, found by the headers of batches.
        The batch is valid until the log is changed."""
        with self._state.access.disk_work("reading"):
            return latest_batch(self._state.segments, self._state.offsets.log_start_offset, end_offset)
