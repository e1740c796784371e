"""The offsets that describe a log, except the end offset."""

from dataclasses import dataclass


@dataclass(slots=True)
class LogOffsets:
    """Owns four offsets of a log and keeps them in order.

    ``log_start_offset <= high_watermark``. No offset is above the log's end, which is stored in ``segments``.
    """

    log_start_offset: int = 0
    high_watermark: int = 0
    flushed_offset: int = 0
    """All records below this offset are durable."""
    highest_copied_offset: int = -1
    """The last offset that is in the remote tier. It is -1 when the tier has no records, or while the offset
    is not known."""
    truncation_count: int = 0
    """The number of truncations since the log was opened."""

    def move_start(self, offset: int) -> None:
        """Move the start up. If the high watermark is below the new start, it moves up, too."""
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)

    def cut(self, end_offset: int) -> None:
        """Lower the offsets after a truncation of the log to ``end_offset``."""
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self.highest_copied_offset = min(self.highest_copied_offset, end_offset - 1)
        self.high_watermark = max(min(self.high_watermark, end_offset), self.log_start_offset)
