"""Partitions of ``__remote_log_metadata`` that other brokers lead. This broker sends events to the leaders
and fetches events from them."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from moldau.cluster.internal_topics import REMOTE_LOG_METADATA_TOPIC
from moldau.network.client.node_connection import NodeAddress, NodeConnection
from moldau.network.client.rpc_client import RpcClient
from moldau.network.own_calls import BrokerCall, BrokerChannel
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.runtime import Entropy
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.unexpected import UnexpectedErrors
from moldau.server.metadata.cluster_view import ClusterView
from moldau.tiered.metadata.calls import APPEND_EVENT, EVENT_OFFSETS, AppendEventCall, EventOffsetsCall
from moldau.tiered.metadata.manager import RemoteMetadataNotReadyError, RemoteMetadataUnknownOutcomeError
from moldau.tiered.metadata.topic import EventWriter, TopicOffsets
from moldau.tiered.storage.storage_manager import RemoteStorageError

__all__ = ["MetadataPeers"]

FETCH_WAIT_MS: Final = 500
FETCH_BYTES: Final = 1 << 18
FETCH_BYTES_MAX: Final = 8 << 20
FETCH_TIMEOUT_MS: Final = 5_000
APPEND_TIMEOUT_MS: Final = 35_000
"""Time-out in ms of a call that appends an event. It is longer than the time for which the leader waits for
the in-sync replicas."""
OFFSETS_TIMEOUT_MS: Final = 5_000
_UNKNOWN_OUTCOMES: Final = (ErrorCode.request_timed_out, ErrorCode.network_exception)


class _LeaderAddress(NamedTuple):
    """The leader of a metadata partition according to this broker's metadata."""

    topic_id: UUID
    broker_id: int
    epoch: int
    address: NodeAddress


class _PendingFetch(NamedTuple):
    """A read of a metadata partition. Its response has not arrived yet."""

    offset: int
    leader: _LeaderAddress
    waits: bool
    """Whether the leader may wait for new events before it answers. This is the case after a read that found
    no event at this offset."""
    answer: "asyncio.Future[memoryview]"


class _ReadPeer:
    """A broker from which events are read."""

    __slots__ = ("task", "wanted")

    def __init__(self) -> None:
        self.wanted: dict[int, _PendingFetch] = {}
        """The requested reads, by partition."""
        self.task: asyncio.Task[None] | None = None
        """The task that fetches while there are readers."""


class MetadataPeers:
    """Sends events to leaders of metadata partitions and reads committed events.

    All methods raise ``RemoteStorageError``. Each broker gets one fetch at a time, which reads the events of
    all its partitions together, as consumers do.

    The fetchers of replicas use the same API in another way. They append the records to the logs of their
    replicas, continue at the ends of these logs, and use fetch sessions. A reader of this class gives the
    offset of each read, gets only bytes below the high watermark, and sends no further request while it
    applies these bytes.
    """

    def __init__(
        self, view: ClusterView, listener_name: str, entropy: Entropy, unexpected: UnexpectedErrors
    ) -> None:
        self._view = view
        self._listener_name = listener_name
        self._unexpected = unexpected
        name = f"remote-metadata-{view.local_id}"
        self._calls = RpcClient(entropy, client_id=name)
        self._fetches = RpcClient(entropy, client_id=name)
        """Fetches use separate connections. A fetch may wait for new events, and on a connection each
        response is sent only after the responses to earlier requests."""
        self._peers: dict[int, _ReadPeer] = {}
        """Peers by broker id."""
        self._fetched: dict[int, tuple[int, memoryview]] = {}
        """The results of :meth:`wait_beyond`, by partition: an offset, and the batches from this offset on.
        The next read of the partition uses them."""

    # -- calls --------------------------------------------------------------------------------

    async def append(self, partition: int, value: bytes, writer: EventWriter) -> int:
        """Append an event at the partition's leader. Returns the event's offset when the event is
        committed."""
        leader = self._leader(partition)
        call = AppendEventCall(
            partition,
            leader.epoch,
            writer.partition.topic_id,
            writer.partition.partition,
            writer.leader_epoch,
            value,
        )
        await self._connect(leader, APPEND_EVENT)
        try:
            return await self._channel(leader, APPEND_TIMEOUT_MS).call(APPEND_EVENT, call)
        except KafkaError as error:
            if error.code in _UNKNOWN_OUTCOMES:
                raise RemoteMetadataUnknownOutcomeError(
                    f"whether an event is in {REMOTE_LOG_METADATA_TOPIC}-{partition} is not known: {error}"
                ) from error
            transient = error.code is not ErrorCode.message_too_large
            raise RemoteStorageError(
                f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error}", transient=transient
            ) from error

    async def offsets(self, partition: int, epoch: int) -> TopicOffsets:
        """Start and end offset of the partition, and the end offset of an epoch in this partition."""
        leader = self._leader(partition)
        await self._connect(leader, EVENT_OFFSETS)
        call = EventOffsetsCall(partition, leader.epoch, epoch)
        try:
            return await self._channel(leader, OFFSETS_TIMEOUT_MS).call(EVENT_OFFSETS, call)
        except KafkaError as error:
            raise _not_ready(partition, error) from error

    def _channel(self, leader: _LeaderAddress, timeout_ms: int) -> BrokerChannel:
        return BrokerChannel(self._calls, *leader.address, timeout_ms)

    async def _connect(self, leader: _LeaderAddress, call: BrokerCall[Any, Any, Any]) -> None:
        """Connect before the request is sent. If the connection fails, the request has certainly had no
        effect."""
        try:
            await NodeConnection(self._calls, leader.address).version_of(call.api_key, OFFSETS_TIMEOUT_MS)
        except KafkaError as error:
            reason = f"broker {leader.broker_id} cannot be reached: {error}"
            raise RemoteMetadataNotReadyError(reason) from error

    # -- fetches ------------------------------------------------------------------------------

    async def read(self, partition: int, offset: int) -> memoryview:
        """Read committed batches. The first batch contains the offset. The result is empty at the end of the
        partition."""
        known = self._fetched.pop(partition, None)
        if known is not None and known[0] == offset:
            return known[1]
        return await self._fetch(partition, offset, waits=False)

    async def wait_beyond(self, partition: int, offset: int) -> None:
        """Wait until a record at or after ``offset`` is committed. The call may also return earlier, so the
        caller must check whether such a record exists."""
        content = await self._fetch(partition, offset, waits=True)
        if len(content):
            self._fetched[partition] = (offset, content)

    async def _fetch(self, partition: int, offset: int, *, waits: bool) -> memoryview:
        leader = self._leader(partition)
        loop = asyncio.get_running_loop()
        wanted = _PendingFetch(offset, leader, waits, loop.create_future())
        peer = self._peers.setdefault(leader.broker_id, _ReadPeer())
        peer.wanted[partition] = wanted
        if peer.task is None:
            peer.task = loop.create_task(self._run(peer))
        try:
            return await wanted.answer
        finally:
            if peer.wanted.get(partition) is wanted:
                del peer.wanted[partition]

    async def _run(self, peer: "_ReadPeer") -> None:
        """Send fetches to a broker while there are readers."""
        try:
            # In this pause, other readers that start now can add their reads to the first request.
            await asyncio.sleep(0)
            while wanted := dict(peer.wanted):
                try:
                    await self._fetch_once(wanted)
                except KafkaError as error:
                    for partition, each in wanted.items():
                        _fail(each, _not_ready(partition, error))
                except Exception as error:
                    self._unexpected.report("fetching remote log metadata", error)
                    for partition, each in wanted.items():
                        _fail(each, RemoteStorageError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error!r}"))
                # In this pause, readers that have just got a response can request more events.
                await asyncio.sleep(0)
        finally:
            peer.task = None

    async def _fetch_once(self, wanted: Mapping[int, _PendingFetch]) -> None:
        leader = next(iter(wanted.values())).leader
        rows = [
            FetchPartition(
                partition=partition,
                current_leader_epoch=each.leader.epoch,
                fetch_offset=each.offset,
                partition_max_bytes=FETCH_BYTES,
            )
            for partition, each in wanted.items()
        ]
        waits = all(each.waits for each in wanted.values())
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS if waits else 0,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=leader.topic_id, partitions=rows)],
        )
        node = NodeConnection(self._fetches, leader.address)
        response: FetchResponse = await node.ask(request, FETCH_TIMEOUT_MS)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code)
        answers = {row.partition_index: row for topic in response.responses for row in topic.partitions}
        for partition, each in wanted.items():
            row = answers.get(partition)
            if row is None:
                _fail(each, RemoteMetadataNotReadyError(f"the response lacks partition {partition}"))
            elif row.error_code is not ErrorCode.none:
                _fail(each, _not_ready(partition, KafkaError(row.error_code)))
            elif not each.answer.done():
                records = row.records
                assert records is None or isinstance(records, bytes | memoryview)
                each.answer.set_result(memoryview(records or b""))

    # -- leaders ------------------------------------------------------------------------------

    def leaders_changed(self) -> None:
        """Apply newer metadata. Reads from former leaders end, because they may never be answered."""
        for peer in self._peers.values():
            for partition, each in list(peer.wanted.items()):
                with contextlib.suppress(RemoteStorageError):
                    if self._leader(partition) == each.leader:
                        continue
                _fail(each, RemoteMetadataNotReadyError(f"partition {partition} has another leader"))

    def _leader(self, partition: int) -> _LeaderAddress:
        view = self._view
        topic = view.image.topics.get(REMOTE_LOG_METADATA_TOPIC)
        if topic is None or not 0 <= partition < len(topic.partitions):
            raise RemoteMetadataNotReadyError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition} does not exist")
        known = topic.partitions[partition]
        address = view.address(known.leader, self._listener_name)
        if address is None or known.leader == view.local_id:
            raise RemoteMetadataNotReadyError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition} has no leader yet")
        return _LeaderAddress(topic.topic_id, known.leader, known.leader_epoch, address)

    async def close(self) -> None:
        """End all reads and calls."""
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            for partition, each in peer.wanted.items():
                _fail(each, RemoteMetadataNotReadyError(f"partition {partition}: this broker stops"))
        await self._fetches.close()
        await self._calls.close()


def _fail(wanted: _PendingFetch, error: RemoteStorageError) -> None:
    if not wanted.answer.done():
        wanted.answer.set_exception(error)


def _not_ready(partition: int, error: KafkaError) -> RemoteStorageError:
    return RemoteMetadataNotReadyError(f"{REMOTE_LOG_METADATA_TOPIC}-{partition}: {error}")
