"""Batches of producers that arrived together, written together.

Of what the append of a batch of 1 KiB costs, a third is its system call, and requests that were sent one
after another often arrive at once.
"""

from typing import Final

from moldau.records.batch import BatchHeader, Buffer, TimestampType
from moldau.runtime import Machine
from moldau.storage.log.appending import AppendingLog, pack_prefix
from moldau.storage.log.config import LogConfig
from moldau.storage.topic_partition import TopicPartition

STAGED_BYTES_MAX: Final = 256 * 1024
"""Beyond it a write of its own costs next to nothing."""

_INT64_MAX: Final = 2**63 - 1


class StagingLog(AppendingLog):
    """A log that takes ordinary batches now and writes them a little later.

    **The caller's contract.** Between :meth:`stage` and :meth:`write_staged` nobody else touches the log, the
    batches' memory stays, and nobody is told that they are appended. To the log they are not: its end and its
    producers are those of before, and when the write fails they stay so.
    """

    def __init__(
        self, machine: Machine, directory: str, topic_partition: TopicPartition, config: LogConfig
    ) -> None:
        super().__init__(machine, directory, topic_partition, config)
        self._staging_config: LogConfig | None = None
        self._stages = False
        self._staged: list[BatchHeader] = []
        self._staged_batches: list[memoryview] = []
        self._staged_producers: set[int] = set()
        self._staged_bytes = 0
        self._staged_end = 0
        self._newest_ms = 0

    def may_stage(self, size_bytes: int, leader_epoch: int) -> bool:
        """Whether a batch of this size may be staged at all, before anyone looks at it.

        Not where topics have their batches changed or opened, nor for large ones, nor where a new segment or
        epoch begins.
        """
        config = self._config
        if config is not self._staging_config:
            self._staging_config, self._stages = config, _stores_as_given(config)
        staged_bytes = self._staged_bytes + size_bytes
        return (
            self._stages
            and staged_bytes <= STAGED_BYTES_MAX
            and self._segments.active.size_bytes + staged_bytes <= config.segment_bytes
            and leader_epoch == self._last_epoch
            and self._failure is None
        )

    def stage(self, batch: memoryview, header: BatchHeader) -> int | None:
        """Accept a client's validated batch that :meth:`may_stage`; its base offset.

        ``None``: it is for :meth:`append_as_leader`, which may refuse it, find it again, or judge it only
        when its producer's staged batch is appended. Raises ``KafkaError`` as that method does.
        """
        staged = self._staged
        if not staged:
            # What is staged together has arrived together.
            self._newest_ms = self._now_ms() + self._config.message_timestamp_after_max_ms
        if header[8] > self._newest_ms:
            return None
        producer_id = header[9]
        if producer_id >= 0:
            producers = self._staged_producers
            if producer_id in producers or self.producers.state.check(header) is not None:
                return None
            producers.add(producer_id)
        offset = self._staged_end if staged else self._segments.end_offset
        staged.append(header)
        self._staged_batches.append(batch)
        self._staged_bytes += header[1] + 12
        self._staged_end = offset + header[6] + 1
        return offset

    def write_staged(self) -> None:
        """Append what was staged, at the offsets that were given.

        Raises ``KafkaError(kafka_storage_error)``; then nothing of it is appended.
        """
        headers, batches, size_bytes = self._staged, self._staged_batches, self._staged_bytes
        if not headers:
            return
        self._staged, self._staged_batches, self._staged_bytes = [], [], 0
        self._staged_producers.clear()
        segments = self._segments
        epoch, first_offset = self._last_epoch, segments.end_offset
        newest_ms = max([header[8] for header in headers])
        if segments.must_roll(size_bytes, self._staged_end - 1, newest_ms, self._now_ms()):
            self.roll()
        buffers: list[Buffer] = []
        offset = first_offset
        for header, batch in zip(headers, batches, strict=True):
            buffers.append(pack_prefix(offset, header[1], epoch))
            buffers.append(batch[16:])
            offset += header[6] + 1
        self._write(buffers, size_bytes, headers, first_offset, batches[0])


def _stores_as_given(config: LogConfig) -> bool:
    """Whether a client's batch that passes the header's checks is stored as it is, and at once."""
    return (
        config.compression is None
        # The acknowledgement waits for a flush, perhaps.
        and config.flush_messages == _INT64_MAX
        and config.message_timestamp_type is TimestampType.CREATE_TIME
        and config.message_timestamp_before_max_ms == _INT64_MAX
        and not config.cleanup_compact
    )
