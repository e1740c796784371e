"""Jumps of clocks in scenarios with several nodes. The log settings are such that a jump could cause
damage."""

from typing import Final

JUMP_MS: Final = 3_600_000
KEPT_FOR_LESS_THAN_A_JUMP: Final = {
    "log.retention.ms": "2700000",
    "log.message.timestamp.after.max.ms": "7200000",
    "log.retention.check.interval.ms": "700",
    "log.segment.delete.delay.ms": "500",
    "offsets.retention.minutes": "45",
}
