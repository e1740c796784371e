"""A queue of the records that the state machine appends to the log. Records of several appends are written in
one batch. An append completes when its records are committed."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.runtime import ErrorCode, KafkaError


@dataclass(slots=True)
class Append:
    """Records that are committed or refused together, and the future for the caller who appends them."""

    values: Sequence[bytes]
    epoch: int
    size_bytes: int
    committed: "asyncio.Future[int]"
    last_offset: int = -1


class AppendQueue:
    """A queue of records that are not written yet, and a queue of written records that the high watermark has
    not reached yet."""

    def __init__(self, max_batch_bytes: int) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._waiting: deque[Append] = deque()
        self._in_hand: list[Append] = []
        self._written: deque[Append] = deque()

    def add(self, values: Sequence[bytes], epoch: int) -> "asyncio.Future[int]":
        """Queue records. Raises ``KafkaError(record_list_too_large)`` when the records do not fit in one
        batch."""
        size_bytes = sum(len(value) + 24 for value in values)
        if size_bytes > self._max_batch_bytes:
            raise KafkaError(
                ErrorCode.record_list_too_large, f"{size_bytes} bytes of records do not fit into one batch"
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(Append(values, epoch, size_bytes, future))
        return future

    @property
    def next_epoch(self) -> int | None:
        """The epoch in which the first unwritten records were decided; ``None`` when there are no such
        records."""
        return self._waiting[0].epoch if self._waiting else None

    def pop_batch(self, epoch: int) -> list[Append]:
        """Remove the records of the next batch from the queue. All of them have the same epoch, and they fit
        in the batch size."""
        taken: list[Append] = []
        size_bytes = 0
        while self._waiting and self._waiting[0].epoch == epoch:
            size_bytes += self._waiting[0].size_bytes
            if taken and size_bytes > self._max_batch_bytes:
                break
            taken.append(self._waiting.popleft())
        self._in_hand = taken
        return taken

    def wrote(self, appends: Sequence[Append], first_offset: int) -> None:
        for append in appends:
            first_offset += len(append.values)
            append.last_offset = first_offset - 1
        self._in_hand = []
        self._written.extend(appends)

    def commit(self, offset: int) -> None:
        """Complete the appends that are below the committed ``offset``."""
        while self._written and self._written[0].last_offset < offset:
            append = self._written.popleft()
            if not append.committed.done():
                append.committed.set_result(append.last_offset)

    def fail(self, error: KafkaError, *, epoch: int | None = None) -> None:
        """Refuse all waiting appends, and all written appends that are not committed. If ``epoch`` is given,
        only the waiting appends of this epoch are refused.

        The next leader may still commit written records, so their outcome is unknown.
        """
        failed = [*self._written, *self._in_hand] if epoch is None else []
        failed += [append for append in self._waiting if epoch in (None, append.epoch)]
        if epoch is None:
            self._written.clear()
            self._in_hand = []
        self._waiting = deque(append for append in self._waiting if epoch not in (None, append.epoch))
        for append in failed:
            if not append.committed.done():
                append.committed.set_exception(KafkaError(error.code, error.message))
                append.committed.exception()  # The caller may have cancelled the future.
