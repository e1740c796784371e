"""Errors of record bytes: the two that Kafka distinguishes.

Clients retry ``CORRUPT_MESSAGE`` (bytes damaged on the way) and give up on ``INVALID_RECORD`` (bytes
that were never right), so the choice between the two decides whether a producer loops or fails.
"""

from dataclasses import dataclass

from moldau.runtime import ErrorCode, KafkaError

__all__ = [
    "CorruptRecordError",
    "InvalidRecordError",
    "OpenedSizeError",
    "RecordError",
    "RecordsRejectedError",
]


class CorruptRecordError(KafkaError):
    """Damaged bytes: too short, with a wrong checksum, or with an unknown magic."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.corrupt_message, message)


class InvalidRecordError(KafkaError):
    """Bytes that arrived as they were sent, but that break a rule of the format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_record, message)


class OpenedSizeError(InvalidRecordError):
    """Records that are larger once decompressed than a batch of that size may hold.

    Answered with MESSAGE_TOO_LARGE, at which Java's producer splits the batch and sends the halves.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.message_too_large, message)


@dataclass(frozen=True, slots=True)
class RecordError:
    """One bad record: its place in the batch (from 0) and an error message (KIP-467)."""

    batch_index: int
    message: str


class RecordsRejectedError(KafkaError):
    """A batch refused for some of its records; produce responses (v8+) list these records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
