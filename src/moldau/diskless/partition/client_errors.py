"""Errors for clients of a partition whose coordinator does not respond."""

from typing import Final

from moldau.runtime import ErrorCode, KafkaError

COORDINATOR_AWAY: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
"""Errors of a coordinator that moves, or that cannot be reached."""


def client_error(code: ErrorCode, message: str | None, instead: ErrorCode) -> KafkaError:
    """The error code for a client after an error of the coordinator. ``instead`` is the retriable error when
    the coordinator is not available."""
    return KafkaError(instead if code in COORDINATOR_AWAY else code, message)
