"""The two errors of record bytes that Kafka distinguishes.

Clients retry after ``CORRUPT_MESSAGE``, which means that bytes were damaged in transit. They do not retry
after ``INVALID_RECORD``, which means that the bytes were never valid. With the wrong error, a producer would
retry forever, or would fail although a retry would succeed.
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
    """Damaged bytes. They are too short, or have a wrong checksum or an unknown magic."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.corrupt_message, message)


class InvalidRecordError(KafkaError):
    """Bytes that arrived as they were sent, but that break a rule of the format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_record, message)


class OpenedSizeError(InvalidRecordError):
    """The decompressed records are larger than the limit, which depends on the size of the compressed batch.

    The error code is MESSAGE_TOO_LARGE. Java's producer then splits the batch and sends the parts.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.message_too_large, message)


@dataclass(frozen=True, slots=True)
class RecordError:
    """One bad record. It has the record's index in the batch (from 0) and an error message (KIP-467)."""

    batch_index: int
    message: str


class RecordsRejectedError(KafkaError):
    """A batch that is refused because of some of its records. Produce responses (v8+) list these records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
