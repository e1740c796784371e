"""Meters of uploads and commits (KIP-1163)."""

from collections.abc import Callable

from moldau.diskless.writing.buffers.buffer import CloseReason
from moldau.metrics import BYTES_BOUNDS, Meters

__all__ = ["WriterMeters"]


class WriterMeters:
    """The meters ``moldau_diskless_Writer_…``; times are in milliseconds."""

    def __init__(
        self, meters: Meters, buffered_bytes: Callable[[], float], recent_bytes: Callable[[], float]
    ) -> None:
        scope = meters.scoped("moldau.diskless", "Writer")
        self._closed = {
            reason: scope.counter(
                "FilesClosedPerSec", "Objects that were closed, by reason.", reason=reason.value
            )
            for reason in CloseReason
        }
        self._uploads = scope.counter("FilesUploadedPerSec", "Objects that were uploaded.")
        self._upload_bytes = scope.counter("UploadBytesPerSec", "Bytes of objects that were uploaded.")
        self._upload_errors = scope.counter("UploadErrorsPerSec", "Uploads that failed and were repeated.")
        self._given_up = scope.counter(
            "UploadsGivenUpPerSec",
            "Objects that were not uploaded because all their producers had timed out.",
        )
        self._size = scope.histogram("FileSizeBytes", "Sizes of objects.", BYTES_BOUNDS)
        self._batches = scope.histogram("BatchesPerFile", "Number of batches in an object.", BYTES_BOUNDS)
        self._wait_ms = scope.histogram(
            "BufferTimeMs", "Time from the first batch of a buffer to the close of the buffer."
        )
        self._upload_ms = scope.histogram(
            "UploadTimeMs", "Time from the close of a buffer to the end of the upload."
        )
        self._commits = scope.counter("CommitsPerSec", "Commits that were answered.")
        self._committed = scope.counter("BatchesCommittedPerSec", "Batches that were committed.")
        self._rejected = scope.counter(
            "BatchesRejectedPerSec", "Batches that were refused and got no offset."
        )
        self._held = scope.counter(
            "BatchesHeldPerSec",
            "How often a batch was written again into a later object, because it had arrived before its"
            " predecessor. This happens when an idempotent producer changes brokers.",
        )
        self._commit_errors = scope.counter(
            "CommitErrorsPerSec", "Commits with an unknown outcome, which had to be repeated."
        )
        self._commit_ms = scope.histogram(
            "CommitTimeMs", "Time from the first attempt of a commit to its known outcome."
        )
        self._pause_ms = scope.histogram(
            "CommitPauseMs",
            "Time from the first failed attempt of a repeated commit to its known outcome. This is how long a"
            " coordinator was not available for this commit.",
        )
        self._deleted = scope.counter(
            "FilesDeletedPerSec", "Objects that were deleted because no batch of them was accepted."
        )
        scope.gauge(
            "BufferedBytes",
            buffered_bytes,
            ("Bytes of batches that wait for their upload, their commit or their response."),
        )
        scope.gauge(
            "RecentBytes",
            recent_bytes,
            "Memory of recently written objects, which this broker reads without the store.",
        )

    def closed(self, reason: CloseReason, size_bytes: int, batch_count: int, waited_ms: float) -> None:
        self._closed[reason].value += 1
        self._size.update(size_bytes)
        self._batches.update(batch_count)
        self._wait_ms.update(waited_ms)

    def uploaded(self, size_bytes: int, took_ms: float) -> None:
        self._uploads.value += 1
        self._upload_bytes.value += size_bytes
        self._upload_ms.update(took_ms)

    def upload_failed(self) -> None:
        self._upload_errors.value += 1

    def given_up(self) -> None:
        self._given_up.value += 1

    def committed(self, batch_count: int, took_ms: float) -> None:
        self._commits.value += 1
        self._committed.value += batch_count
        self._commit_ms.update(took_ms)

    def commit_failed(self) -> None:
        self._commit_errors.value += 1

    def paused(self, took_ms: float) -> None:
        self._pause_ms.update(took_ms)

    def rejected(self, batch_count: int) -> None:
        self._rejected.value += batch_count

    def held(self) -> None:
        self._held.value += 1

    def deleted(self) -> None:
        self._deleted.value += 1
