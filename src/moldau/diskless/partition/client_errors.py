"""Errors for clients of a partition whose coordinator cannot answer."""

from typing import Final

from moldau.runtime import ErrorCode, KafkaError

_COORDINATOR_AWAY: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)


def client_error(code: ErrorCode, message: str | None, instead: ErrorCode) -> KafkaError:
    """A coordinator's error for a client; ``instead`` is a retriable one."""
    return KafkaError(instead if code in _COORDINATOR_AWAY else code, message)
