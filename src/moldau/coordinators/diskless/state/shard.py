"""The diskless coordinator's decisions over one partition of ``__diskless_metadata`` (KIP-1164). Pure.

Only ``replay`` changes persistent state. The runtime replays a decision immediately, so the shard's state
contains all decisions, committed or not. A read through the runtime may use decisions that are not committed
yet. Its result is therefore sent only when these decisions are committed. The positions of batches and the
files in use are not in this object, but in the store. After the commit of records, the store writes them into
its tables.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from moldau.coordinators.diskless.calls import (
    FENCE_ONLY,
    FORGOTTEN,
    MAX_FILE_BATCHES,
    NUMBER_PASSED,
    ClosedFile,
    CommitFileCall,
    CommitFileResult,
    DeletedRecords,
    GuardToIssue,
    IssuedGuard,
    MarkerToWrite,
    OffsetToDelete,
    PartitionsToCreate,
    ProducersOfPartition,
    PruneCall,
    PrunedPartition,
    TopicResult,
)
from moldau.coordinators.diskless.codecs.file_codec import decode_receipt, encode_receipt
from moldau.coordinators.diskless.state import canonical, commit, replay
from moldau.coordinators.diskless.state.commit_order import CommitOrder, CommitTurn, WaitingCommit
from moldau.coordinators.diskless.state.endings import decide_markers
from moldau.coordinators.diskless.state.file_memory import CoordinatorTimes, FileMemory
from moldau.coordinators.diskless.state.gaps import ProducerGaps
from moldau.coordinators.diskless.state.guards import TransactionGuards
from moldau.coordinators.diskless.state.partitions import PartitionState, PartitionTable
from moldau.coordinators.diskless.state.producers import epoch_of, expiry_cutoff_ms
from moldau.coordinators.diskless.state.records import (
    DisklessRecord,
    Expired,
    FileCommitted,
    FilesClosed,
    FilesReleased,
    FileTakenOver,
    Moved,
    PartitionCreated,
    Pruned,
    RecordsDeleted,
    TopicDeleted,
    TransactionsEnded,
)
from moldau.coordinators.effects import BatchKind, Effects, Reply, TimerKey, Token, answer
from moldau.coordinators.shard import CanonicalState
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError


class ReplayedChanges:
    """Changes that replay made, by log offset. The store removes the changes that it has used."""

    def __init__(self) -> None:
        self.moved: dict[int, Sequence[Moved]] = {}
        """Changes of a file's runs, or of markers."""
        self.expired: dict[int, Sequence[tuple[int, int]]] = {}
        """Producers that were removed, by the number of their partition and their id."""


class DisklessShard:
    """State and decisions of one coordinator. For each operation there is exactly one result. It is in the
    effects of the operation, or, if a commit has to wait, in the effects of a later operation."""

    def __init__(self, settings: CoordinatorTimes | None = None) -> None:
        self.settings = settings or CoordinatorTimes()
        self.partitions = PartitionTable()
        self.files = FileMemory()
        self.order = CommitOrder()
        self._gaps = ProducerGaps()
        self._guards = TransactionGuards()
        self._decided: commit.DecidedFile | None = None
        """The last decision about a file. It is removed when its record is replayed."""
        self._changes: ReplayedChanges | None = None

    # -- commit ---------------------------------------------------------------------------------

    def commit_file(
        self,
        call: CommitFileCall,
        now_ms: int,
        token: Token,
        elapsed_ms: int | None = None,
        cluster_ms: int | None = None,
    ) -> Effects[DisklessRecord]:
        """Commit a file. ``elapsed_ms`` comes from a clock without jumps. ``cluster_ms`` is the time of the
        cluster, with which the age of the file is measured. By default both are ``now_ms``.

        The result is a :class:`CommitFileResult`. Raises ``calls.DEFINITE_REFUSALS``, FORGOTTEN and
        NUMBER_PASSED. If an earlier commit of the same broker has not arrived yet, this call has no result at
        first. It gets its result from :meth:`commit_due` after the earlier commit was decided. If the earlier
        commit does not arrive within a second, :meth:`refuse_outdated` refuses this call.
        """
        place, broker_id = call.place, call.uploader_broker_id
        if place is None:
            return self._commit(call, now_ms, token, elapsed_ms, cluster_ms)
        obsolete = self.order.heard(broker_id, place)
        try:
            if (
                self.order.turn(broker_id, place) is CommitTurn.LATER
                and self.files.result(call.object_key) is None
            ):
                since_ms = now_ms if elapsed_ms is None else elapsed_ms
                obsolete += self.order.wait(WaitingCommit(call, token, since_ms), place)
                return Effects(replies=obsolete)
            effects = self._commit(call, now_ms, token, elapsed_ms, cluster_ms)
        except KafkaError as error:
            if not obsolete:
                raise
            # the error is returned and not raised, so that the calls in ``obsolete`` also get their responses
            return Effects(replies=(*obsolete, Reply(token, error)))
        return replace(effects, replies=(*obsolete, *effects.replies))

    def commit_due(
        self, now_ms: int, token: Token, elapsed_ms: int | None = None, cluster_ms: int | None = None
    ) -> Effects[DisklessRecord]:
        """Commit the waiting file that ``order.due()`` returns. The file's own call gets the result. The
        result of this operation is ``None``."""
        own = Reply(token, None)
        waiting = self.order.take_due()
        if waiting is None:
            return Effects(replies=(own,))
        try:
            effects = self._commit(waiting.call, now_ms, waiting.token, elapsed_ms, cluster_ms)
        except KafkaError as error:
            return Effects(replies=(Reply(waiting.token, error), own))
        return replace(effects, replies=(*effects.replies, own))

    def refuse_outdated(self, elapsed_ms: int, token: Token) -> Effects[DisklessRecord]:
        """Refuse commits that have waited too long for an earlier commit. The result is ``None``."""
        return Effects(replies=(*self.order.outdated(elapsed_ms), Reply(token, None)))

    def _commit(
        self,
        call: CommitFileCall,
        now_ms: int,
        token: Token,
        elapsed_ms: int | None,
        cluster_ms: int | None,
    ) -> Effects[DisklessRecord]:
        place, turn = call.place, CommitTurn.NOW
        if place is not None:
            turn = self.order.turn(call.uploader_broker_id, place)
            self.order.passed(call.uploader_broker_id, place)
        known = self.repeated(call, now_ms if cluster_ms is None else cluster_ms)
        if known is not None:
            return answer(token, known)
        if turn is CommitTurn.PAST:
            raise KafkaError(
                NUMBER_PASSED, f"The number of {call.object_key} has passed; its outcome is unknown."
            )
        decided = self._decided = commit.decide_file(
            self.partitions, call, now_ms, self._gaps, elapsed_ms, self._guards
        )
        record = decided.record
        return answer(token, commit.result_of(record, now_ms, self.partitions), [record])

    def repeated(self, call: CommitFileCall, cluster_ms: int) -> CommitFileResult | None:
        """The result for a repeated call; ``None`` if the call is not a repetition, so that the file may be
        committed.

        Brokers take the creation time of a file, and coordinators take ``cluster_ms``, from the active
        controller's clock. Therefore a wrong clock of a broker does not change the age of a file.
        """
        key = call.object_key
        known = self.files.result(key)
        if known is not None:
            result = commit.result_of(decode_receipt(known.receipt), known.committed_ms, self.partitions)
            if len(result.batches) != len(call.batches):
                raise KafkaError(ErrorCode.invalid_request, f"{key} was committed with other batches.")
            return result
        if self.files.is_closed(key):
            raise KafkaError(ErrorCode.resource_not_found, f"{key} is closed: it is never committed.")
        age_ms = cluster_ms - call.created_ms
        if age_ms > self.settings.repeat_age_ms:
            raise KafkaError(FORGOTTEN, f"{key} is so old that its outcome is not known any more.")
        if age_ms > self.settings.max_commit_age_ms:
            raise KafkaError(ErrorCode.invalid_timestamp, f"{key} was begun {age_ms} ms ago: too old.")
        sizes = 0 < call.size_bytes <= commit.MAX_FILE_BYTES and 0 < len(call.batches) <= MAX_FILE_BATCHES
        if not sizes or not key:
            message = f"A file needs a key, a size below 4 GiB and up to {MAX_FILE_BATCHES} batches."
            raise KafkaError(ErrorCode.invalid_request, message)
        return None

    # -- transactions ---------------------------------------------------------------------------

    def guard(self, wanted: GuardToIssue, fresh: int) -> IssuedGuard:
        """The producer's guard in a partition. A new guard has the number ``fresh``. This writes no
        record."""
        topic_id, index, producer_id, epoch = wanted
        partition = self.partitions.find(topic_id, index)
        if partition is None:
            return IssuedGuard(topic_id, index, *_unknown_partition())
        window = partition.producers.get(producer_id)
        if window is not None and epoch < epoch_of(window):
            code = ErrorCode.invalid_producer_epoch
            return IssuedGuard(topic_id, index, code, commit.MESSAGES[code])
        number = self._guards.issue((partition.number, producer_id), epoch, fresh)
        return IssuedGuard(topic_id, index, guard=number)

    def known_guard(self, wanted: GuardToIssue) -> int:
        """The valid guard that the producer already has in a partition; 0 if there is none."""
        topic_id, index, producer_id, epoch = wanted
        partition = self.partitions.find(topic_id, index)
        return 0 if partition is None else self._guards.known((partition.number, producer_id), epoch)

    def end_transactions(
        self, markers: Sequence[MarkerToWrite], now_ms: int, token: Token
    ) -> Effects[DisklessRecord]:
        """Append markers. The result is a list of :class:`EndedTransactionPart`."""
        record, answers = decide_markers(self.partitions, markers, now_ms)
        for marker, ended in zip(markers, answers, strict=True):
            partition = self.partitions.find(marker.topic_id, marker.partition_index)
            if ended.error is ErrorCode.none and partition is not None:
                key = (partition.number, marker.producer_id)
                self._guards.ended(key, marker.producer_epoch, marker.transaction_version)
        return answer(token, answers, [] if record is None else [record])

    # -- topics ---------------------------------------------------------------------------------

    def create_partitions(
        self, topics: Sequence[PartitionsToCreate], token: Token
    ) -> Effects[DisklessRecord]:
        """Create missing partitions. The result is a list of :class:`TopicResult`."""
        records: list[DisklessRecord] = []
        for topic_id, name, indexes in topics:
            known = self.partitions.topic(topic_id)
            records.extend(
                PartitionCreated(topic_id, name, index)
                for index in sorted(set(indexes))
                if index not in known
            )
        return answer(token, [TopicResult(topic.topic_id) for topic in topics], records)

    def delete_topics(self, topic_ids: Sequence[UUID], token: Token) -> Effects[DisklessRecord]:
        """Delete topics. An unknown topic counts as deleted. The result is a list of results for the
        topics."""
        records: list[DisklessRecord] = [
            TopicDeleted(topic_id) for topic_id in dict.fromkeys(topic_ids) if self.partitions.topic(topic_id)
        ]
        return answer(token, [TopicResult(topic_id) for topic_id in topic_ids], records)

    # -- offsets --------------------------------------------------------------------------------

    def delete_records(self, requests: Sequence[OffsetToDelete], token: Token) -> Effects[DisklessRecord]:
        """Move log starts forward, never back. The result is a list of :class:`DeletedRecords`."""
        records: list[DisklessRecord] = []
        results: list[DeletedRecords] = []
        for topic_id, index, asked in requests:
            partition = self.partitions.find(topic_id, index)
            if partition is None:
                results.append(DeletedRecords(topic_id, index, *_unknown_partition()))
                continue
            offset = partition.next if asked == -1 else asked
            if not 0 <= offset <= partition.next:
                message = f"Offset {asked} is not within 0 and the high watermark {partition.next}."
                results.append(DeletedRecords(topic_id, index, ErrorCode.offset_out_of_range, message))
                continue
            if offset > partition.log_start:
                records.append(RecordsDeleted(topic_id, index, offset))
            low_watermark = max(offset, partition.log_start)
            results.append(DeletedRecords(topic_id, index, low_watermark=low_watermark))
        return answer(token, results, records)

    def prune(self, call: PruneCall, token: Token) -> Effects[DisklessRecord]:
        """Compare and set ``wal_start``. The result is a :class:`PrunedPartition`."""
        topic_id, index, from_offset, to_offset, epoch, position = call
        partition = self.partitions.find(topic_id, index)
        if partition is None:
            return answer(token, PrunedPartition(topic_id, index, *_unknown_partition()))
        here = PrunedPartition(
            topic_id,
            index,
            log_start_offset=partition.log_start,
            wal_start_offset=partition.wal_start,
            remote_metadata_position=partition.remote_position,
        )
        error = _prune_error(partition, call)
        if error is not None:
            return answer(token, here._replace(error=error[0], message=error[1]))
        if from_offset == to_offset == FENCE_ONLY:
            if epoch == partition.prune_epoch:
                return answer(token, here)
            here_offset = partition.wal_start
            fence = Pruned(topic_id, index, here_offset, here_offset, epoch, partition.remote_position)
            return answer(token, here, [fence])
        if (from_offset, to_offset) == partition.last_prune:
            return answer(token, here)
        record = Pruned(topic_id, index, from_offset, to_offset, epoch, position)
        moved = here._replace(wal_start_offset=to_offset, remote_metadata_position=position)
        return answer(token, moved, [record])

    # -- files ----------------------------------------------------------------------------------

    def close_files(
        self, object_keys: Sequence[str], live: Collection[str], now_ms: int, token: Token
    ) -> Effects[DisklessRecord]:
        """Record in the log that this coordinator will not commit these objects any more. The result is a
        list with one entry for each object.

        ``live`` contains the keys of files in the store. A committed file is refused while this coordinator
        still has the file or the result of its commit.
        """
        closing: dict[str, None] = {}
        results: list[ClosedFile] = []
        for key in object_keys:
            if key in live or (self.files.result(key) is not None and not self.files.is_closed(key)):
                message = "The file is committed here."
                results.append(ClosedFile(key, ErrorCode.invalid_request, message))
                continue
            if not self.files.is_closed(key):
                closing[key] = None
            results.append(ClosedFile(key))
        return answer(token, results, [FilesClosed(now_ms, tuple(closing))] if closing else [])

    def take_over(
        self,
        object_key: str,
        remaining_owner_ids: Sequence[int],
        size_bytes: int,
        created_ms: int,
        now_ms: int,
        token: Token,
    ) -> Effects[DisklessRecord]:
        """Become the owner of the file. The result is ``None``. A repeated call changes nothing."""
        record = FileTakenOver(object_key, size_bytes, created_ms, now_ms, tuple(remaining_owner_ids))
        return answer(token, None, [record])

    def release_files(self, object_keys: Sequence[str], token: Token) -> Effects[DisklessRecord]:
        """Release files that were handed over or deleted. The result is ``None``."""
        records = [FilesReleased(tuple(object_keys))] if object_keys else []
        return answer(token, None, records)

    def expire(self, token: Token, now_ms: int, cluster_ms: int | None = None) -> Effects[DisklessRecord]:
        """Remove outdated entries. The result is ``None``.

        For results and closed keys, the earlier of the two times is used. If the cluster's clock is behind, a
        file is younger according to ``cluster_ms`` than according to ``now_ms``, and the result of a young
        file must be kept.
        """
        expiration_ms = self.settings.producer_id_expiration_ms
        cutoff_ms = expiry_cutoff_ms(now_ms, expiration_ms, self.partitions.producer_times())
        files_now_ms = now_ms if cluster_ms is None else min(now_ms, cluster_ms)
        record = Expired(files_now_ms - self.settings.remember_ms, cutoff_ms)
        due = self.files.has_any_before(record.files_before_ms)
        due = due or self.partitions.has_expired_producer(cutoff_ms)
        return answer(token, None, [record] if due else [])

    # -- reads ----------------------------------------------------------------------------------

    def describe_producers(self, wanted: PartitionKey) -> ProducersOfPartition:
        """Return the producers whose last batches the partition stores. The error is
        UNKNOWN_TOPIC_OR_PARTITION if there is no such partition."""
        partition = self.partitions.find(*wanted)
        if partition is None:
            return ProducersOfPartition(*wanted, *_unknown_partition())
        return ProducersOfPartition(*wanted, producers=partition.described_producers())

    # -- calls of the runtime -------------------------------------------------------------------

    def follow_changes(self) -> ReplayedChanges:
        """Start to collect the changes by each replay, and return the collection. The store takes the changes
        from it when the records are committed."""
        self._changes = ReplayedChanges()
        return self._changes

    def replay(self, offset: int, record: DisklessRecord, kind: BatchKind) -> None:
        match record:
            case FileCommitted():
                decided, self._decided = self._decided, None
                changes = decided.changes if decided is not None and decided.record is record else None
                moved = replay.replay_file(self.partitions, record, changes)
                self.files.committed(record, record.receipt or encode_receipt(record))
                if record.commit_number >= 0:
                    next_number = record.commit_number + 1
                    self.order.restore(record.uploader_broker_id, record.broker_epoch, next_number)
                if self._changes is not None:
                    self._changes.moved[offset] = moved
            case TransactionsEnded():
                moved = replay.replay_markers(self.partitions, record)
                if self._changes is not None:
                    self._changes.moved[offset] = moved
            case PartitionCreated(topic_id, name, index):
                if self.partitions.find(topic_id, index) is None:
                    self.partitions.add(PartitionState(offset, PartitionKey(topic_id, index), name))
            case TopicDeleted(topic_id):
                self.partitions.delete_topic(topic_id)
            case RecordsDeleted(topic_id, index, log_start):
                partition = self.partitions.find(topic_id, index)
                if partition is not None:
                    partition.delete_before(log_start)
            case Pruned(topic_id, index, from_offset, to_offset, epoch, position):
                partition = self.partitions.find(topic_id, index)
                if partition is not None:
                    partition.prune(from_offset, to_offset, epoch, position)
            case FilesClosed(closed_ms, keys):
                for key in keys:
                    self.files.close(key, closed_ms)
            case FileTakenOver(key, _, _, taken_ms, _):
                if self.files.result(key) is None:
                    self.files.close(key, taken_ms)
            case FilesReleased(_):
                pass
            case Expired(files_before_ms, producers_before_ms):
                self.files.forget_before(files_before_ms)
                expired = self.partitions.expire_producers(producers_before_ms)
                if self._changes is not None:
                    self._changes.expired[offset] = expired
            case _:
                assert_never(record)

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Nothing is done, because the coordinator's own log contains no transactional records."""

    def canonical(self) -> CanonicalState:
        """Return all state that replay creates in this object. The state in the store is not included."""
        return canonical.canonical(self.partitions, self.files)

    def on_loaded(self, now_ms: int) -> Effects[DisklessRecord]:
        return Effects()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects[DisklessRecord]:
        return Effects()


def _unknown_partition() -> tuple[ErrorCode, str]:
    code = ErrorCode.unknown_topic_or_partition
    return code, commit.MESSAGES[code]


def _prune_error(partition: PartitionState, call: PruneCall) -> tuple[ErrorCode, str] | None:
    if call.epoch < partition.prune_epoch:
        return ErrorCode.fenced_leader_epoch, f"Epoch {partition.prune_epoch} has pruned already."
    if (call.from_offset, call.to_offset) in (partition.last_prune, (FENCE_ONLY, FENCE_ONLY)):
        return None
    if call.from_offset != partition.wal_start:
        return (
            ErrorCode.invalid_update_version,
            f"The WAL starts at {partition.wal_start}, not at {call.from_offset}.",
        )
    if not call.from_offset < call.to_offset <= partition.next:
        return ErrorCode.offset_out_of_range, f"The WAL ends at {partition.next}."
    return None
