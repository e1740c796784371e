"""A classic partition as the log of a coordinator."""

from collections.abc import Callable

from moldau.records.batch import parse_header
from moldau.replication.classic import ClassicPartition
from moldau.storage.append_info import AppendOrigin


class PartitionCoordinatorLog:
    """What the coordinator runtime needs of a partition that this broker leads."""

    def __init__(self, partition: ClassicPartition) -> None:
        self._partition = partition

    @property
    def log_start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self._partition.log.config.max_message_bytes

    def append(self, batch: bytearray) -> int:
        info = self._partition.append_own(batch, [parse_header(batch)], AppendOrigin.COORDINATOR)
        return info.first_offset

    async def read(self, offset: int, max_bytes: int) -> bytes | memoryview:
        views = self._partition.log.read(offset, max_bytes).views
        return views[0] if len(views) == 1 else b"".join(views)

    def on_high_watermark(self, listener: Callable[[int], None] | None) -> None:
        self._partition.on_high_watermark = listener
