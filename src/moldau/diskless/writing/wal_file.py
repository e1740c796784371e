"""A file, from the moment when its buffer is closed until its last producer gets a response."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias

from moldau.coordinators.diskless.calls import (
    FOLLOWS_DROPPED,
    TRANSACTIONAL,
    BatchToCommit,
    CommitFileCall,
    CommitPlace,
    CommittedBatch,
)
from moldau.diskless.writing.buffers.buffer import BufferedBatch, BuiltObject
from moldau.diskless.writing.waiters import ObjectWaiters, WaitingProducer
from moldau.records.batch import TRANSACTIONAL_BIT
from moldau.runtime import Entropy

__all__ = ["FileShare", "FilesInFlight", "ProducedBatch", "WalFile"]

FORGETTING: Final = 0.98
"""The recent maximum of the batches in flight is multiplied by this factor with each finished file."""

ProducedBatch: TypeAlias = BufferedBatch[WaitingProducer]


class FileShare:
    """The batches of a file that one coordinator commits."""

    __slots__ = (
        "batches",
        "coordinator_id",
        "dropped",
        "file",
        "follow_dropped",
        "is_answered",
        "is_cached",
        "is_done",
        "outcomes",
    )

    def __init__(self, file: "WalFile", coordinator_id: int) -> None:
        self.file = file
        self.coordinator_id = coordinator_id
        self.batches: list[ProducedBatch] = []
        self.dropped: list[ProducedBatch] = []
        """Batches that must never be committed, because their producers got a time-out."""
        self.follow_dropped: Collection[int] = ()
        """Positions in ``batches`` of the batches that follow a dropped batch of their producer."""
        self.is_answered = False
        self.is_done = False
        """Whether the producers are answered and this broker's cache has appended the part."""
        self.outcomes: Sequence[CommittedBatch] = ()
        """Outcomes of ``batches``, when the batches are committed."""
        self.is_cached = False
        """Whether all batches are in this broker's cache, which then does not need the object's bytes any
        more.
        """

    def call(self, broker_id: int, place: CommitPlace | None = None) -> CommitFileCall:
        file = self.file
        return CommitFileCall(
            object_key=file.key,
            size_bytes=file.object.size_bytes,
            created_ms=file.created_ms,
            uploader_broker_id=broker_id,
            batches=self._batches_to_commit(),
            owner_ids=file.owner_ids,
            place=place,
        )

    def _batches_to_commit(self) -> list[BatchToCommit]:
        batches = [_to_commit(batch) for batch in self.batches]
        for at in self.follow_dropped:
            batches[at] = batches[at]._replace(flags=batches[at].flags | FOLLOWS_DROPPED)
        return batches

    def drop_expired(self) -> None:
        """Remove batches whose producers got a timeout, because the producers will send these batches
        again."""
        self.dropped += [batch for batch in self.batches if batch.owner.is_expired]
        self.batches = [batch for batch in self.batches if not batch.owner.is_expired]


class WalFile:
    """A file, its parts for each coordinator, and the outcomes of the parts."""

    __slots__ = (
        "accepted_count",
        "created_ms",
        "is_uncertain",
        "key",
        "object",
        "opened_s",
        "owner_ids",
        "payload_bytes",
        "shares",
        "uploaded",
        "waiters",
    )

    def __init__(
        self,
        key: str,
        built: BuiltObject[WaitingProducer],
        waiters: ObjectWaiters,
        *,
        created_ms: int,
        payload_bytes: int,
        opened_s: float,
    ) -> None:
        self.key = key
        self.object = built
        self.waiters = waiters
        self.created_ms = created_ms
        self.payload_bytes = payload_bytes
        """Total size of the file's batches."""
        self.opened_s = opened_s
        self.shares: list[FileShare] = []
        self.owner_ids: Sequence[int] = ()
        self.uploaded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True when the object is in the store; False when the upload was abandoned."""
        self.accepted_count = 0
        """Number of batches of the file that have offsets. As long as it is 0, nothing refers to the
        object.
        """
        self.is_uncertain = False
        """Whether a commit was repeated, so that ``accepted_count`` may be too low."""

    @property
    def is_done(self) -> bool:
        return all(share.is_done for share in self.shares)

    def settle_shares(self, entropy: Entropy) -> None:
        """Decide, when the object is stored, which batches are committed. The decision is made once for all
        coordinators.

        Each coordinator gets the list of owners, so no coordinator of the list may be left out afterwards.
        The order of the list is random (KIP-1164), so that all coordinators own about the same number of
        files.
        """
        for share in self.shares:
            share.drop_expired()
        owners = [share.coordinator_id for share in self.shares if share.batches]
        self.owner_ids = tuple(entropy.shuffled(owners) if len(owners) > 1 else owners)


def _to_commit(batch: ProducedBatch) -> BatchToCommit:
    header = batch.header
    topic_id, partition_index = batch.key
    last_offset_delta, base_sequence = header[6], header[11]
    return BatchToCommit(
        topic_id,
        partition_index,
        batch.owner.request_id,
        batch.byte_offset,
        header[1] + 12,
        last_offset_delta,
        header[12],
        header[8],
        batch.timestamp_type,
        header[9],
        header[10],
        base_sequence,
        -1 if base_sequence < 0 else (base_sequence + last_offset_delta) & 0x7FFFFFFF,
        TRANSACTIONAL if header[5] & TRANSACTIONAL_BIT else 0,
        batch.owner.guard,
    )


class FilesInFlight:
    """Owns the files until they end, and measures how many batches are usually in flight."""

    def __init__(self) -> None:
        self._files: dict[WalFile, None] = {}
        """Unfinished files, whose answers are pending or whose bytes this broker's own cache still needs."""
        self._unanswered: dict[WalFile, None] = {}
        self.batch_count = 0
        """Number of batches in the files whose producers have no response yet."""
        self._recent_batches_max = 0.0
        """Recent maximum of :attr:`batch_count`, the number of batches in flight."""

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[WalFile]:
        return iter(list(self._files))

    def __contains__(self, file: WalFile) -> bool:
        return file in self._files

    @property
    def unanswered_count(self) -> int:
        return len(self._unanswered)

    def are_all_in(self, buffered_batches: int) -> bool:
        """Whether the buffer contains as many batches as are usually in flight at a time."""
        return not self._unanswered and 0 < self._recent_batches_max <= buffered_batches

    def add(self, file: WalFile) -> None:
        """Add a file that was made from a closed buffer."""
        self._files[file] = self._unanswered[file] = None
        self.batch_count += len(file.object.batches)
        self._recent_batches_max = max(self._recent_batches_max, self.batch_count)

    def answered(self, file: WalFile) -> None:
        """Record that the producers of the file have their responses, so they may send further batches."""
        if self._unanswered.pop(file, self) is None:
            self.batch_count -= len(file.object.batches)
            self._recent_batches_max *= FORGETTING

    def remove(self, file: WalFile) -> bool:
        """Remove a file that has ended. Returns False when it was removed before."""
        if self._files.pop(file, self) is self:
            return False
        self.answered(file)
        return True
