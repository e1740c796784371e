"""Collects batches that arrive together from producers, and writes them together.

When a batch of 1 KiB is appended, a third of the cost is the system call. Requests that were sent one after
another often arrive together.
"""

from collections.abc import Callable
from typing import Final

from moldau.records.batch import BatchHeader, TimestampType
from moldau.runtime.buffers import Buffer
from moldau.storage.log.appending import Appender, pack_prefix
from moldau.storage.log.config import LogConfig
from moldau.storage.log.state.log_state import LogState

STAGED_BYTES_MAX: Final = 256 * 1024
"""Maximum total size of the staged batches, in bytes. For larger batches, a separate write adds almost no
cost."""

_INT64_MAX: Final = 2**63 - 1


class StagedAppends:
    """Owns the batches of one log that are accepted and will soon be written together.

    **The caller's contract.** Between :meth:`stage` and :meth:`write_staged` no other call may use the log,
    the batches' memory must stay valid, and no append may be acknowledged. During this time the log does not
    contain the batches yet. Its end and its producers change only with the write, and do not change if the
    write fails.
    """

    def __init__(self, now_ms: Callable[[], int], state: LogState, appender: Appender) -> None:
        self._now_ms = now_ms
        self._state = state
        self._appender = appender
        self._config: LogConfig | None = None
        """The configuration for which ``_stores_as_given`` was computed."""
        self._stores_as_given = False
        """Whether the configuration of the log allows staging."""
        self._headers: list[BatchHeader] = []
        self._batches: list[memoryview] = []
        self._producer_ids: set[int] = set()
        self._size_bytes = 0
        self._end_offset = 0
        self._newest_ms = 0

    def may_stage(self, size_bytes: int, leader_epoch: int) -> bool:
        """Whether a batch of this size may be staged. This is checked before the batch is parsed. The result
        is False if the staged batches would become too large, and for a topic whose batches must be changed
        or opened. It is also False when a new segment or a new epoch begins."""
        segments = self._state.segments
        config = segments.config
        if config is not self._config:
            self._config, self._stores_as_given = config, _stores_as_given(config)
        staged_bytes = self._size_bytes + size_bytes
        return (
            self._stores_as_given
            and staged_bytes <= STAGED_BYTES_MAX
            and segments.active.size_bytes + staged_bytes <= config.segment_bytes
            and leader_epoch == self._state.epochs.current
            and self._state.access.failure is None
        )

    def stage(self, batch: memoryview, header: BatchHeader) -> int | None:
        """Accept a client's validated batch for which :meth:`may_stage` is true. Returns the batch's base
        offset.

        Returns ``None`` in three cases: the batch may be refused, it may be a duplicate, or it can be checked
        only after its producer's staged batch is appended. The caller then uses
        :meth:`Appender.append_as_leader`. Raises the same errors as that method.
        """
        staged = self._headers
        if not staged:
            # All batches that are staged together have the same arrival time.
            self._newest_ms = self._now_ms() + self._state.segments.config.message_timestamp_after_max_ms
        if header[8] > self._newest_ms:
            return None
        producer_id = header[9]
        if producer_id >= 0:
            producers = self._producer_ids
            if producer_id in producers or self._state.producers.state.check(header) is not None:
                return None
            producers.add(producer_id)
        offset = self._end_offset if staged else self._state.segments.end_offset
        staged.append(header)
        self._batches.append(batch)
        self._size_bytes += header[1] + 12
        self._end_offset = offset + header[6] + 1
        return offset

    def write_staged(self) -> None:
        """Append the staged batches at their assigned offsets.

        Raises ``KafkaError(kafka_storage_error)`` if the disk fails. In this case no staged batch is
        appended.
        """
        headers, batches, size_bytes = self._headers, self._batches, self._size_bytes
        if not headers:
            return
        self._headers, self._batches, self._size_bytes = [], [], 0
        self._producer_ids.clear()
        segments = self._state.segments
        epoch, first_offset = self._state.epochs.current, segments.end_offset
        newest_ms = max([header[8] for header in headers])
        if segments.must_roll(size_bytes, self._end_offset - 1, newest_ms, self._now_ms()):
            self._appender.roll()
        buffers: list[Buffer] = []
        offset = first_offset
        for header, batch in zip(headers, batches, strict=True):
            buffers.append(pack_prefix(offset, header[1], epoch))
            buffers.append(batch[16:])
            offset += header[6] + 1
        self._appender.write(buffers, size_bytes, headers, first_offset, batches[0])


def _stores_as_given(config: LogConfig) -> bool:
    """Whether the topic stores a client's batch unchanged and immediately, if the batch passes the checks of
    its header."""
    return (
        config.compression is None
        # With a lower value, the acknowledgement may have to wait for a flush.
        and config.flush_messages == _INT64_MAX
        and config.message_timestamp_type is TimestampType.CREATE_TIME
        and config.message_timestamp_before_max_ms == _INT64_MAX
        and not config.cleanup_compact
    )
