"""Opens, leads and closes this broker's partitions according to the metadata.

This is the only module in which the kind of a topic determines the implementation of the topic's partitions.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from moldau.cluster.image.directories import RESERVED_DIRECTORY_COUNT
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.partitions import PartitionKey, TopicPartition
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.partition_interface import Partition, StopReason
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.gathered_lines import GatheredLines
from moldau.server.subsystems.partitions.topic_changes import (
    NewPartition,
    TopicChange,
    creatable,
    in_order,
    without_leader,
)
from moldau.server.topics.partition_kinds import PartitionKind
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.folders.log_directory import LogDirectory
from moldau.storage.folders.log_folders import NewLog
from moldau.storage.folders.placement import Assignment
from moldau.storage.log.config import LogConfig
from moldau.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

PARTITIONS_A_TURN: Final = 25
"""Number of partitions to which the metadata are applied without a break. This takes about 5 ms if all of
these partitions are opened."""

_RECONFIGURED_A_TURN: Final = 100
"""Number of partitions that get a new configuration without a break. This takes about 10 ms."""


class LeadershipListener(Protocol):
    """A listener for replicas whose logs belong to coordinators. It is called at each change of the metadata,
    and learns whether this broker leads the replica's partition."""

    def leads(self, partition: ClassicPartition, epoch: int) -> None: ...

    def no_longer_leads(self, topic: str, topic_id: UUID, index: int, epoch: int) -> None: ...


class AssignmentListener(Protocol):
    """A listener that learns the log directories of replicas."""

    def put(self, key: PartitionKey, directory_id: UUID) -> None: ...

    def forget(self, key: PartitionKey) -> None: ...


class _Hosted(NamedTuple):
    """An open partition."""

    partition: Partition
    kind: PartitionKind[Any]


class PartitionHosting:
    """Applies the image to this broker's partitions, some partitions in each iteration of the event loop.

    Existing partitions change at once, unless the limit of a turn is reached. For a new partition, worker
    threads create the log first. Until the log exists, requests for the partition are answered with
    NOT_LEADER_OR_FOLLOWER, after which clients retry.
    """

    def __init__(
        self,
        local_id: int,
        registry: PartitionRegistry,
        kind_of: Callable[[Topic], PartitionKind[Any]],
        listener: LeadershipListener,
        logs: LogManager,
        may_lead: Callable[[MetadataImage], bool] = lambda image: True,
        assignments: AssignmentListener | None = None,
    ) -> None:
        """``may_lead`` returns whether the leaderships in an image belong to this process.

        The image may contain leaderships of this broker's previous process. These leaderships and their
        epochs end when this process registers. Without this check their coordinators would be loaded twice.
        """
        self._local_id = local_id
        self._registry = registry
        self._kind_of = kind_of
        self._listener = listener
        self._logs = logs
        self._assignments = assignments
        self._may_lead = may_lead
        self._waiting: dict[str, None] = {}
        self._hosted: dict[PartitionKey, _Hosted] = {}
        self._seen: dict[int, Topic] = {}
        self._changes: deque[TopicChange] = deque()
        self._next_turn: asyncio.Handle | None = None
        self._new: dict[PartitionKey, NewPartition] = {}
        self._opener: asyncio.Task[None] | None = None
        self._reconfiguring: set[asyncio.Task[None]] = set()
        self._on_settled: list[asyncio.Future[None]] = []
        self._unopened_lines = GatheredLines(logger, logging.ERROR, "%d partitions cannot be opened: %s (%s)")
        self._is_frozen = False
        self.offline = registry.offline
        self._topics = EMPTY_IMAGE.topics
        self._at_start: dict[int, int] | None = None
        """Partition counts of the topics in the first image, by the topic ids as integers. The table is empty
        if every log folder could be read, because then it is not needed.
        """

    def apply(self, image: MetadataImage, changed: Iterable[str], removed: Iterable[Topic]) -> None:
        """Reconcile this broker's partitions with topics that were changed or removed.

        After :meth:`freeze` nothing changes any more.
        """
        if self._is_frozen:
            return
        self._topics = image.topics
        if self._at_start is None:
            all_read = all(directory.was_read for directory in self._logs.directories)
            self._at_start = (
                {} if all_read else {each.topic_id.int: len(each.partitions) for each in image.topics}
            )
        for topic in removed:
            self._seen.pop(topic.topic_id.int, None)
            self._changes.append(TopicChange(topic, is_removed=True))
        leads = self._may_lead(image)
        if leads and self._waiting:
            changed = [*self._waiting, *changed]
            self._waiting.clear()
        for current in in_order(image, changed):
            name = current.name
            if not leads and any(one.leader == self._local_id for one in current.partitions):
                waiting = without_leader(current, self._local_id)
                self._changes.append(TopicChange(waiting, is_removed=False))
                self._waiting[name] = None
            elif self._seen.get(current.topic_id.int) is not current:
                self._changes.append(TopicChange(current, is_removed=False))
                self._seen[current.topic_id.int] = current
        if self._next_turn is None:
            self._apply_next_changes()

    @property
    def is_settled(self) -> bool:
        """Whether every partition has the state of the last image."""
        return not (self._changes or self._new)

    async def settled(self) -> None:
        """Wait until all changes that were applied before the call are complete and durable."""
        if not self.is_settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._on_settled.append(future)
            await future
        await self._logs.settled()

    def freeze(self) -> None:
        """Open, lead and close no more partitions. Changes in progress end without further effect."""
        self._is_frozen = True
        self._changes.clear()
        self._new = {key: new for key, new in self._new.items() if new.is_being_made}
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        for task in self._reconfiguring:
            task.cancel()
        self._complete_waiters()

    async def stop(self) -> None:
        """Stop after :meth:`freeze`, and wait for the logs that are being created."""
        self.freeze()
        self._unopened_lines.flush()
        if self._opener is not None:
            await asyncio.wait([self._opener])
        await asyncio.gather(*self._reconfiguring, return_exceptions=True)

    def _apply_next_changes(self) -> None:
        self._next_turn = None
        for _ in range(PARTITIONS_A_TURN):
            if not self._changes:
                break
            self._follow_one()
        if self._changes:
            self._next_turn = asyncio.get_running_loop().call_soon(self._apply_next_changes)
        elif self._new and self._opener is None:
            self._opener = asyncio.get_running_loop().create_task(self._open_all())
        self._complete_waiters()

    def _complete_waiters(self) -> None:
        if self._on_settled and self.is_settled:
            waiting, self._on_settled = self._on_settled, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def _follow_one(self) -> None:
        change = self._changes[0]
        index, topic = change.next_index, change.topic
        change.next_index += 1
        if change.next_index >= len(topic.partitions):
            self._changes.popleft()
        if index >= len(topic.partitions):
            return
        key = PartitionKey(topic.topic_id, index)
        try:
            if change.is_removed:
                self._close(key, topic, StopReason.TOPIC_DELETED)
            elif self._local_id not in topic.partitions[index].replicas:
                self._close(key, topic, StopReason.REPLICA_REMOVED)
            else:
                self._follow(topic, key)
        except Exception:
            # An exception for one partition must not prevent the other partitions from applying the metadata.
            logger.exception("%s-%d cannot follow the metadata", topic.name, index)

    def _follow(self, topic: Topic, key: PartitionKey) -> None:
        hosted, new = self._hosted.get(key), self._new.get(key)
        if hosted is not None and hosted.kind.must_exchange(topic, key.partition):
            self._new[key] = NewPartition(topic)
            self._end(key, hosted)
        elif hosted is not None:
            self._apply_role(hosted, topic)
        elif new is not None:
            new.topic, new.has_left = topic, False
        elif self._lacks_log(topic, key):
            self._new[key] = NewPartition(topic)
        else:
            self._open(topic, key)

    def _lacks_log(self, topic: Topic, key: PartitionKey) -> bool:
        name = TopicPartition(topic.name, key.partition)
        return self._logs.lacks(name, topic.topic_id) or self._must_exchange(topic, key)

    def _must_exchange(self, topic: Topic, key: PartitionKey) -> bool:
        return self._kind_of(topic).must_exchange(topic, key.partition)

    def _apply_role(self, hosted: _Hosted, topic: Topic) -> None:
        partition = hosted.partition
        self._compare_directory(topic, partition.key)
        hosted.kind.apply_role(partition, topic, partial(self._role_applied, hosted, topic))

    def _compare_directory(self, topic: Topic, key: PartitionKey) -> None:
        """Notify the ``AssignmentListener`` if a replica's log directory differs from the directory in the
        metadata."""
        home = self._logs.home_of(TopicPartition(topic.name, key.partition))
        if self._assignments is None or home is None or home.directory_id is None:
            return
        if home.directory_id == topic.partitions[key.partition].directory_of(self._local_id):
            self._assignments.forget(key)
        else:
            self._assignments.put(key, home.directory_id)

    def suspend(self, name: TopicPartition) -> PartitionKey | None:
        """Close a replica, so that its log can be exchanged. Until :meth:`resume`, requests for the replica
        are answered with NOT_LEADER_OR_FOLLOWER. The result None means that the replica cannot be closed now.
        """
        found = self._registry.get(name.topic, name.partition)
        hosted = None if found is None else self._hosted.get(found.key)
        topic = None if found is None else self._seen.get(found.key.topic_id.int)
        if self._is_frozen or found is None or hosted is None or topic is None:
            return None
        if not hosted.kind.may_suspend(hosted.partition):
            return None
        self._new[found.key] = NewPartition(topic, is_being_made=True, is_exchanged=True)
        self._end(found.key, hosted)
        return found.key

    def resume(self, key: PartitionKey) -> None:
        """Open a suspended replica again. Its role is the role in the newest metadata."""
        self._opened(self._new.pop(key), key, {})
        if self._next_turn is None:
            self._apply_next_changes()

    def _end(self, key: PartitionKey, hosted: _Hosted) -> None:
        """Close a replica that remains assigned to this broker."""
        partition = hosted.partition
        del self._hosted[key]
        self._registry.remove(key)
        try:
            self._listener.no_longer_leads(
                partition.topic, key.topic_id, key.partition, partition.leader_epoch
            )
            hosted.kind.close(partition, StopReason.KEPT)
        except Exception:
            logger.exception("%s-%d cannot be closed", partition.topic, key.partition)

    def directory_failed(self, directory: LogDirectory) -> None:
        """Take the replicas in a failed log directory offline, so that requests get KAFKA_STORAGE_ERROR.

        If this broker has not reported the directory of a replica to the controller yet, it reports the
        directory now. The controller must know in which directory the replica is, so that it can move the
        leadership to another replica.
        """
        reason = f"log folder {directory.path} is offline: {directory.offline_reason}"
        for key, hosted in tuple(self._hosted.items()):
            partition = hosted.partition
            if self._logs.home_of(TopicPartition(partition.topic, key.partition)) is not directory:
                continue
            self.offline[key] = reason
            self._end(key, hosted)

    def _role_applied(self, hosted: _Hosted, topic: Topic) -> None:
        replica = hosted.kind.coordinator_replica(hosted.partition)
        if self._is_frozen or replica is None:
            return
        index = replica.key.partition
        metadata = topic.partitions[index]
        if metadata.leader == self._local_id:
            self._listener.leads(replica, metadata.leader_epoch)
        else:
            self._listener.no_longer_leads(topic.name, topic.topic_id, index, metadata.leader_epoch)

    # -- opening ------------------------------------------------------------------------------

    async def _open_all(self) -> None:
        try:
            while wanted := creatable(self._new):
                for new in wanted.values():
                    new.is_being_made = True
                failed = await self._make_logs({key: new.topic for key, new in wanted.items()})
                for count, key in enumerate(wanted):
                    self._opened(self._new.pop(key), key, failed)
                    if count % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                        await asyncio.sleep(0)
        finally:
            self._new = {
                key: new for key, new in self._new.items() if not new.is_being_made or new.is_exchanged
            }
            self._opener = None
            self._complete_waiters()

    async def _make_logs(self, opening: Mapping[PartitionKey, Topic]) -> dict[TopicPartition, KafkaError]:
        wanted: list[NewLog] = []
        configs: dict[UUID, LogConfig | None] = {}
        for count, (key, topic) in enumerate(opening.items()):
            if key.topic_id not in configs:
                configs[key.topic_id] = self._kind_of(topic).log_config(topic)
            config = configs[key.topic_id]
            if config is not None:
                wanted.append(
                    NewLog(
                        TopicPartition(topic.name, key.partition),
                        config,
                        topic.topic_id,
                        self._assignment(topic, key, config),
                    )
                )
            if count % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await asyncio.sleep(0)
        try:
            failed = await self._exchange(opening)
            new = [each for each in wanted if each.topic_partition not in failed]
            failed |= await self._logs.create(new, self._topics.name_of)
            return failed | await self._exchange(opening, failed)
        except Exception as error:
            logger.exception("the logs of %d partitions cannot be made", len(wanted))
            reason = KafkaError(ErrorCode.kafka_storage_error, str(error))
            return dict.fromkeys((new.topic_partition for new in wanted), reason)

    async def _exchange(
        self, opening: Mapping[PartitionKey, Topic], skipped: Container[TopicPartition] = ()
    ) -> dict[TopicPartition, KafkaError]:
        """Exchange the logs that must be exchanged. Returns the failures."""
        failed: dict[TopicPartition, KafkaError] = {}
        for key, topic in opening.items():
            name = TopicPartition(topic.name, key.partition)
            if name not in skipped and self._must_exchange(topic, key):
                try:
                    await self._kind_of(topic).exchange(topic, key.partition)
                except KafkaError as error:
                    failed[name] = error
        return failed

    def _assignment(self, topic: Topic, key: PartitionKey, config: LogConfig) -> Assignment:
        named = topic.partitions[key.partition].directory_of(self._local_id)
        count_at_start = (self._at_start or {}).get(topic.topic_id.int, 0)
        return Assignment(
            None if named.int < RESERVED_DIRECTORY_COUNT else named,
            is_new=key.partition >= count_at_start,
            is_cache=config.is_cache,
        )

    def _opened(
        self, new: NewPartition, key: PartitionKey, failed: Mapping[TopicPartition, KafkaError]
    ) -> None:
        topic = new.topic
        name = TopicPartition(topic.name, key.partition)
        if new.has_left:
            if name not in failed:
                self._remove_log(name, key)
            return
        if self._is_frozen:
            return
        error = failed.get(name)
        try:
            if error is not None:
                self._cannot_open(topic, key, error)
            elif self._must_exchange(topic, key):
                # The metadata have changed since the log was created. The log must now be exchanged for
                # another log.
                self._new[key] = NewPartition(topic)
            else:
                self._open(topic, key)
        except Exception:
            logger.exception("%s-%d cannot be opened", topic.name, key.partition)

    def _open(self, topic: Topic, key: PartitionKey) -> None:
        kind = self._kind_of(topic)
        try:
            partition = kind.open(topic, key.partition)
        except KafkaError as error:
            self._cannot_open(topic, key, error)
            return
        hosted = self._hosted[key] = _Hosted(partition, kind)
        self.offline.pop(key, None)
        self._registry.add(partition)
        self._apply_role(hosted, topic)

    def _cannot_open(self, topic: Topic, key: PartitionKey, error: KafkaError) -> None:
        self._compare_directory(topic, key)
        reason = str(error)
        # Each change of the topic causes a retry. If the error has not changed, it is not logged again.
        if self.offline.get(key) != reason:
            self.offline[key] = reason
            self._unopened_lines.add(f"{topic.name}-{key.partition}", reason)

    def _close(self, key: PartitionKey, topic: Topic, reason: StopReason) -> None:
        self.offline.pop(key, None)
        if self._assignments is not None:
            self._assignments.forget(key)
        new = self._new.get(key)
        if new is not None and new.is_being_made:
            new.has_left = True
        elif new is not None:
            del self._new[key]
            # A log that was to be exchanged exists already.
            self._remove_log(TopicPartition(topic.name, key.partition), key)
        hosted = self._hosted.pop(key, None)
        if hosted is None:
            return
        self._registry.remove(key)
        epoch = topic.partitions[key.partition].leader_epoch
        self._listener.no_longer_leads(topic.name, key.topic_id, key.partition, epoch)
        hosted.kind.close(hosted.partition, reason)

    def _remove_log(self, name: TopicPartition, key: PartitionKey) -> None:
        """Remove the log of a partition that has left this broker, and that is not open."""
        if self._logs.lacks(name, key.topic_id):
            return
        newest = self._topics.get_by_id(key.topic_id)
        if newest is None or not self._kind_of(newest).retire(newest, key.partition):
            self._logs.delete(name)

    def reconfigure(self, topic_names: Iterable[str] | None) -> None:
        """Apply changed configurations of some topics. ``None`` means that the broker's configuration has
        changed. This changes the configuration of all topics, too."""
        if self._is_frozen:
            return
        names = None if topic_names is None else set(topic_names)
        meant = [each for each in self._hosted.values() if names is None or each.partition.topic in names]
        if len(meant) <= _RECONFIGURED_A_TURN:
            self._reconfigure(meant)
        else:
            # A partition always gets the current configuration. It may therefore include later changes.
            task = asyncio.get_running_loop().create_task(self._reconfigure_in_turns(meant))
            self._reconfiguring.add(task)
            task.add_done_callback(self._reconfigured)

    def _reconfigured(self, task: "asyncio.Task[None]") -> None:
        self._reconfiguring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("configurations of partitions were not changed", exc_info=error)

    async def _reconfigure_in_turns(self, partitions: Sequence[_Hosted]) -> None:
        for start in range(0, len(partitions), _RECONFIGURED_A_TURN):
            self._reconfigure(partitions[start : start + _RECONFIGURED_A_TURN])
            await asyncio.sleep(0)

    def _reconfigure(self, partitions: Iterable[_Hosted]) -> None:
        for each in partitions:
            key = each.partition.key
            # A deleted topic has no configuration any more. Its partitions must not get the default values.
            if self._hosted.get(key) is each and key.topic_id.int in self._seen:
                each.kind.reconfigure(each.partition)
