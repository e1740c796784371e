"""CreateChunks at the leader of an active chunk. The chunk ends, and the next chunk begins on other brokers.

The leader delays appends until all earlier records are committed. The end of the log is then the border. The
new replicas get the state at the border and store this state durably. After that, the leader sends the
request to the controller. The controller creates the new chunk if the leader epoch and the partition epoch
have not changed. No append may continue until the leader knows the outcome of the switch.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from moldau.chunks.calls import HandedOver
from moldau.cluster.controller.channel import ControllerChannel
from moldau.cluster.decisions.chunks.admission import check_brokers, check_partition, check_topic
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.own.chunks.create_chunks import (
    CreateChunksRequest,
    CreateChunksResult,
    CreateChunksTopicPartition,
)
from moldau.protocol.own.chunks.report_chunks import ReportChunksRequest
from moldau.protocol.partitions import PartitionKey
from moldau.replication.appending.freezing import AppendFreeze
from moldau.replication.classic_partition import ClassicPartition
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.machine import Machine
from moldau.server.topics.registry import PartitionRegistry
from moldau.storage.log.config import LogConfig
from moldau.storage.producers.producer_snapshot import encode_producer_snapshot

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 5.0
"""Maximum time in seconds for which appends are delayed. In this time all earlier appends must be committed,
and the outcome of the switch must be known."""
ATTEMPT_S: Final = 2.0
"""Time limit in seconds of one request to the controller. After it, the leadership is checked again."""
RETRY_S: Final = 0.2
"""Pause in seconds before the request to the controller is repeated, if its response was lost."""
POLL_S: Final = 0.005


class HandOverPeers(Protocol):
    """Sends the state at a border to the brokers of the next chunk."""

    async def hand_over(self, broker_id: int, state: HandedOver) -> None: ...


class ChunkCreation:
    """Ends active chunks that this broker leads. This class is used on the event loop."""

    def __init__(
        self,
        broker_id: int,
        machine: Machine,
        partitions: PartitionRegistry,
        channel: ControllerChannel,
        image: Callable[[], MetadataImage],
        peers: HandOverPeers,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._machine = machine
        self._partitions = partitions
        self._channel = channel
        self._image = image
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._under_way: set[PartitionKey] = set()
        self.on_pause: Callable[[float], None] = lambda _: None
        """Called with the time in ms for which the producers of a partition waited."""

    async def create(self, wanted: CreateChunksTopicPartition) -> CreateChunksResult:
        """End the active chunk of a partition. The result contains the border or an error."""
        name, index = wanted.topic_name, wanted.partition_id
        try:
            border = await self._create(name, index, tuple(wanted.broker_ids))
        except KafkaError as error:
            return CreateChunksResult(
                topic_name=name, partition_id=index, error_code=error.code, error_message=error.message
            )
        return CreateChunksResult(topic_name=name, partition_id=index, start_offset=border)

    async def _create(self, topic_name: str, index: int, brokers: tuple[int, ...]) -> int:
        partition, topic = self._checked(topic_name, index, brokers)
        key, epoch = partition.key, partition.leader_epoch
        if key in self._under_way:
            raise _refusal(ErrorCode.reassignment_in_progress, "a chunk of the partition is being created")
        self._under_way.add(key)
        try:
            await self._check_controller()
            async with self._frozen(partition):
                # If all replicas lose power after the switch, at least this replica still has the whole chunk
                # because of this flush.
                await partition.log.flush()
                border = partition.log.log_end_offset
                in_sync = await self._hand_over(partition, border, epoch, brokers)
                self._check_leads(partition, epoch)
                request = self._request(topic, partition, border, brokers, in_sync)
                return await self._switch(partition, epoch, border, request)
        finally:
            self._under_way.discard(key)

    # -- checks ---------------------------------------------------------------------------------

    def _checked(self, name: str, index: int, brokers: tuple[int, ...]) -> tuple[ClassicPartition, Topic]:
        image = self._image()
        topic = image.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        found = self._partitions.get(name, index)
        partition = found if isinstance(found, ClassicPartition) else None
        configs = {} if partition is None else _topic_configs(partition.log.config)
        check_topic(image, topic, configs.get)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        metadata = topic.partitions[index]
        check_partition(metadata)
        check_brokers(image, index, metadata, brokers)
        if partition.log.log_end_offset <= max(metadata.start_offset, _first_offset(partition)):
            raise _refusal(ErrorCode.invalid_request, "the active chunk is empty")
        return partition, topic

    @staticmethod
    def _check_leads(partition: ClassicPartition, epoch: int) -> None:
        if not partition.is_leader or partition.leader_epoch != epoch:
            raise _refusal(ErrorCode.not_leader_or_follower, "the leadership ended")

    async def _check_controller(self) -> None:
        """Raise ``KafkaError`` if no controller responds, before any producer has to wait.

        If the response to the switch is lost, the outcome is unknown, and producers wait until a controller
        responds. Therefore the switch is not begun without a controller.
        """
        deadline = asyncio.get_running_loop().time() + ATTEMPT_S
        # This request only tests whether a controller responds. It reports no chunks, so it changes nothing.
        nothing = ReportChunksRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch(), chunks=[])
        response = await self._channel.send(nothing, deadline=deadline)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, response.error_message)

    # -- steps ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _frozen(self, partition: ClassicPartition) -> AsyncIterator[None]:
        """Delay appends until all earlier records are committed. Raises REQUEST_TIMED_OUT if this takes too
        long.

        If the creation of the chunk takes longer than the time-out, new appends are refused until the
        creation has ended, because the controller may have committed it.
        """
        freeze, epoch = AppendFreeze(partition, self._machine), partition.leader_epoch
        freeze.begin()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + DRAIN_TIMEOUT_S
        try:
            while not freeze.is_drained:
                self._check_leads(partition, epoch)
                if loop.time() >= deadline:
                    raise _refusal(ErrorCode.request_timed_out, "followers have not copied all records")
                await asyncio.sleep(POLL_S)
            refusing = loop.call_at(deadline, freeze.refuse)
            try:
                yield
            finally:
                refusing.cancel()
        finally:
            freeze.end()
            self.on_pause((loop.time() - begun) * 1000)

    async def _hand_over(
        self, partition: ClassicPartition, border: int, epoch: int, brokers: Sequence[int]
    ) -> list[int]:
        """Send the state to the new replicas. Returns the brokers that stored it. Raises NOT_ENOUGH_REPLICAS
        if too few brokers stored it."""
        log = partition.log
        state = HandedOver(
            *partition.key,
            self._broker_id,
            epoch,
            border,
            log.log_start_offset,
            encode_producer_snapshot(log.producers.state),
            [(each.epoch, each.start_offset) for each in log.leader_epochs.entries],
        )
        answers = await asyncio.gather(
            *(self._peers.hand_over(each, state) for each in brokers), return_exceptions=True
        )
        in_sync = []
        for broker, answer in zip(brokers, answers, strict=True):
            if answer is None:
                in_sync.append(broker)
            elif isinstance(answer, KafkaError):
                logger.warning(
                    "broker %d has not taken over a chunk of %s: %s", broker, partition.topic, answer
                )
            else:
                raise answer
        if len(in_sync) < min(partition.min_in_sync, len(brokers)):
            reason = f"only brokers {in_sync} have taken over the state at the border"
            raise _refusal(ErrorCode.not_enough_replicas, reason)
        return in_sync

    def _request(
        self,
        topic: Topic,
        partition: ClassicPartition,
        border: int,
        brokers: Sequence[int],
        in_sync: Sequence[int],
    ) -> CreateChunksRequest:
        log, metadata = partition.log, topic.partitions[partition.key.partition]
        newest = self._image().topics.get(topic.name)
        if newest is not None and newest.topic_id == topic.topic_id:
            metadata = newest.partitions[partition.key.partition]
        is_first = metadata.start_offset < 0
        segments = log.segments.segments
        row = CreateChunksTopicPartition(
            topic_name=topic.name,
            partition_id=partition.key.partition,
            broker_ids=brokers,
            start_offset=border,
            start_timestamp=self._machine.clock.now_ms(),
            prev_stop_offset=border - 1,
            topic_id=topic.topic_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=metadata.partition_epoch,
            in_sync=in_sync,
            max_timestamp=max(segment.max_timestamp_ms for segment in segments),
            size_bytes=log.size_bytes,
            first_offset=_first_offset(partition) if is_first else -1,
            first_timestamp=segments[0].first_timestamp_ms if is_first else -1,
        )
        return CreateChunksRequest(
            topic_partitions=[row], broker_id=self._broker_id, broker_epoch=self._broker_epoch()
        )

    async def _switch(
        self, partition: ClassicPartition, epoch: int, border: int, request: CreateChunksRequest
    ) -> int:
        """Send the request until its outcome is known. The outcome is known from a response, from the image,
        or from a new leader epoch.

        If the chunk has ended, this method returns after this replica has ended its leadership. Raises
        ``KafkaError`` if nothing has changed, or if the replica is no longer leader.
        """
        may_be_done, loop = False, asyncio.get_running_loop()
        while True:
            # The broker may have registered again since the last attempt.
            request = replace(request, broker_epoch=self._broker_epoch())
            try:
                sent = self._channel.send(request, deadline=loop.time() + ATTEMPT_S)
                self._raise_refusal(await sent)
            except KafkaError as error:
                if error.code not in (_UNKNOWN_IF_REPEATED if may_be_done else _UNKNOWN_OUTCOME):
                    raise
                may_be_done = True
                logger.info("the outcome of a new chunk of %s is not known: %s", partition.topic, error)
            else:
                await self._until_shown(partition, epoch, border)
            if self._begins_at(partition) == border:
                await self._until_resigned(partition, epoch)
                return border
            self._check_leads(partition, epoch)
            self._check_unchanged(partition, epoch, request.topic_partitions[0].partition_epoch)
            await asyncio.sleep(RETRY_S)

    def _check_unchanged(self, partition: ClassicPartition, epoch: int, partition_epoch: int) -> None:
        """Raise INVALID_UPDATE_VERSION if the image shows another change of the partition, which has raised
        the partition epoch. The controller compares the partition epoch in the request with its own, so it
        will refuse the creation of the chunk."""
        metadata = self._image().topics.partition(*partition.key)
        if metadata is None or metadata.leader_epoch != epoch:
            return
        if metadata.partition_epoch > partition_epoch:
            raise _refusal(ErrorCode.invalid_update_version, "the partition has changed in the meantime")

    @staticmethod
    def _raise_refusal(response: Any) -> None:
        for answer in (response, *response.results):
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(answer.error_code, answer.error_message)

    async def _until_shown(self, partition: ClassicPartition, epoch: int, border: int) -> None:
        while self._begins_at(partition) != border:
            self._check_leads(partition, epoch)
            await asyncio.sleep(POLL_S)

    @staticmethod
    async def _until_resigned(partition: ClassicPartition, epoch: int) -> None:
        """Wait until the partition has applied the image. Partitions apply the image in several iterations of
        the event loop, and this partition leads until then."""
        while True:
            if not partition.is_leader or partition.leader_epoch != epoch:
                return
            await asyncio.sleep(POLL_S)

    def _begins_at(self, partition: ClassicPartition) -> int:
        topic = self._image().topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.key.topic_id:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic.partitions[partition.key.partition].start_offset


def _first_offset(partition: ClassicPartition) -> int:
    """The first offset of the records on this broker's disk. Earlier records are in the remote tier, or in
    chunks."""
    return max(partition.log.log_start_offset, partition.log.local_log_start_offset)


_UNKNOWN_OUTCOME: Final = frozenset(
    {
        ErrorCode.not_controller,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.unknown_server_error,
    }
)
_UNKNOWN_IF_REPEATED: Final = _UNKNOWN_OUTCOME | {
    ErrorCode.fenced_leader_epoch,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.stale_broker_epoch,
    ErrorCode.broker_id_not_registered,
    ErrorCode.cluster_authorization_failed,
}
"""The errors of a repeated request after which it is unknown whether an earlier request succeeded. The
controller returns some of these errors before it compares the leader epoch. It returns the other errors also
when an earlier request has succeeded, because a new chunk raises the leader epoch. Any other error shows that
the leader epoch is unchanged, so no earlier request has succeeded."""


def _topic_configs(config: LogConfig) -> dict[str, str]:
    """Return the topic's configs that the conditions for a new chunk depend on."""
    return {
        "cleanup.policy": "compact" if config.cleanup_compact else "delete",
        "remote.storage.enable": str(config.remote_storage_enable).lower(),
    }


def _refusal(code: ErrorCode, reason: str) -> KafkaError:
    return KafkaError(code, reason)
