"""Blocks the use of a log after its disk has failed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NoReturn

from moldau.runtime import ErrorCode, KafkaError
from moldau.runtime.files.descriptor_cache import LACK_OF_DESCRIPTORS


class DiskAccess:
    """A log's access to its disk. It ends when the disk fails, and never begins again.

    ``release`` releases the log's files without writing. It is called when the access ends, but not after a
    clean close (:meth:`end`). The parts of the log do disk work inside :meth:`disk_work`, or call
    :meth:`fail` with the error themselves.
    """

    def __init__(self, directory: str, release: Callable[[], None]) -> None:
        self._directory = directory
        self._release = release
        self.failure: KafkaError | None = None
        """The reason why the access has ended; None before that."""
        self.on_failure: Callable[[OSError], None] | None = None
        """Called once when the disk fails."""

    def check(self) -> None:
        """Raise ``KafkaError(kafka_storage_error)`` when the access has ended."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, self.failure.message)

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """End the access after an error of the disk. Notify the owner once, and raise an error."""
        if self.failure is None:
            reason = f"{doing} {self._directory} failed: {error.strerror or error}"
            self.failure = KafkaError(ErrorCode.kafka_storage_error, reason)
            with contextlib.suppress(OSError):
                self._release()
            if self.on_failure is not None:
                self.on_failure(error)
        raise KafkaError(ErrorCode.kafka_storage_error, self.failure.message) from error

    def check_descriptors(self, doing: str, error: OSError) -> None:
        """Raise a retriable error if the only problem was a missing file descriptor. In this case the log is
        intact."""
        if error.errno in LACK_OF_DESCRIPTORS:
            reason = f"{doing} {self._directory} failed: {error.strerror or error} (see ulimit -n)"
            raise KafkaError(ErrorCode.kafka_storage_error, reason) from error

    @contextlib.contextmanager
    def disk_work(self, doing: str) -> Iterator[None]:
        """A context for disk work of this log. A failure in this context ends the access."""
        self.check()
        try:
            yield
        except OSError as error:
            self.fail(doing, error)

    def close(self, message: str) -> None:
        """End the access for a reason outside this log. The owner is not notified."""
        if self.failure is None:
            self.failure = KafkaError(ErrorCode.kafka_storage_error, message)
            with contextlib.suppress(OSError):
                self._release()

    def end(self, message: str) -> None:
        """End the access after the log's files were closed cleanly."""
        self.failure = KafkaError(ErrorCode.kafka_storage_error, message)
