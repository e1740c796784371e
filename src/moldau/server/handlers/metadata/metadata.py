"""Metadata and DescribeCluster: the brokers, topics and partitions that clients see."""

import asyncio
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from moldau.cluster.controller.channel import Caller
from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import MARKED_INTERNAL_TOPICS
from moldau.network.authorization import (
    CLUSTER_NAME,
    AclOperation,
    AclResourceType,
    Authorizer,
    authorized_operations,
)
from moldau.network.context import RequestContext
from moldau.network.served import Handler, HandlerResult, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseChunk,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau.protocol.rows import Cut
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.metadata.cluster_view import ClusterView
from moldau.server.topics.topic_creation import TopicCreator

ENDPOINT_BROKERS: Final = 1
ENDPOINT_CONTROLLERS: Final = 2
TOPIC_IDS_SINCE: Final = 12
NOT_ASKED: Final = -(2**31)
"""The value of the bit field of authorized operations, if the request did not ask for these operations."""
ROWS_A_TURN: Final = 1_000
"""Number of partitions that are described without a break. This takes about 3 ms."""
TOPICS_A_TURN: Final = 100


class MetadataHandlers:
    """Serves the Metadata and DescribeCluster APIs."""

    def __init__(self, view: ClusterView, creator: TopicCreator, authorizer: Authorizer) -> None:
        self._view = view
        self._creator = creator
        self._authorizer = authorizer
        self._rendered: dict[tuple[str, str | None, bool, bool, str], MetadataResponseTopic] = {}
        """The cached descriptions of topics. The key has the listener, the client's rack, a flag for
        gateways, a flag for chunks, and the topic's name."""
        self._rendered_from: MetadataImage | None = None

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.METADATA: Served(
                self.metadata,
                cuts=(Cut(("topics",), ("topics",), distinct=dict.fromkeys),),
                long_answers=(("topics", "partitions"), ("topics", "partitions", "chunks")),
            ),
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
        }

    def metadata(self, context: RequestContext, request: MetadataRequest) -> HandlerResult:
        if self._wants_all(context, request):
            topics = self._view.image.topics
            if request.include_chunks or len(topics) + sum(topics.replica_load.values()) > ROWS_A_TURN:
                return self._respond_in_turns(context, request, list(topics))
            return self._respond(
                context, request, [self._render(context, request, topic) for topic in topics]
            )
        wanted = tuple(dict.fromkeys(request.topics or ()))
        if context.api_version < TOPIC_IDS_SINCE and any(_is_by_id(topic) for topic in wanted):
            # Requests of versions 10 and 11 have a field for the topic id, but responses of these versions
            # must contain the topic's name. As in Kafka, a request by topic id is therefore refused.
            refused = [
                _failed(topic.name or "", topic.topic_id, ErrorCode.invalid_request) for topic in wanted
            ]
            return self._respond(context, request, refused)
        missing = [
            topic.name
            for topic in wanted
            if topic.name and topic.topic_id == ZERO_UUID and self._view.image.topics.get(topic.name) is None
        ]
        if missing and request.allow_auto_topic_creation and self._creator.auto_create:
            return self._create_and_respond(context, request, wanted, missing)
        if request.include_chunks or len(wanted) + sum(map(self._partitions_of, wanted)) > ROWS_A_TURN:
            return self._respond_in_turns(context, request, wanted)
        return self._respond(context, request, [self._find(context, request, topic, {}) for topic in wanted])

    def _partitions_of(self, wanted: MetadataRequestTopic) -> int:
        topics = self._view.image.topics
        by_id = wanted.topic_id != ZERO_UUID
        topic = topics.get_by_id(wanted.topic_id) if by_id else topics.get(wanted.name or "")
        return 0 if topic is None else len(topic.partitions)

    async def _respond_in_turns(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: Iterable[Topic | MetadataRequestTopic],
    ) -> MetadataResponse:
        """Make the same response as :meth:`_respond`, for a request about many partitions. Other work can run
        between two topics."""
        found: list[MetadataResponseTopic] = []
        for count, each in enumerate(wanted, 1):
            topic = each if isinstance(each, Topic) else self._visible(context, each)
            if topic is None:
                assert isinstance(each, MetadataRequestTopic)
                found.append(self._find(context, request, each, {}))
            else:
                steps = self._render_steps(context, request, topic)
                while True:
                    try:
                        next(steps)
                    except StopIteration as done:
                        found.append(done.value)
                        break
                    await asyncio.sleep(0)
            if count % TOPICS_A_TURN == 0:
                await asyncio.sleep(0)
        return self._respond(context, request, found)

    @staticmethod
    def _wants_all(context: RequestContext, request: MetadataRequest) -> bool:
        # In version 0 the list cannot be null, so an empty list means all topics.
        return request.topics is None or (context.api_version == 0 and not request.topics)

    async def _create_and_respond(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: tuple[MetadataRequestTopic, ...],
        missing: list[str],
    ) -> MetadataResponse:
        errors = await self._creator.create_automatically(missing, Caller.of(context))
        return self._respond(
            context, request, [self._find(context, request, topic, errors) for topic in wanted]
        )

    def _respond(
        self, context: RequestContext, request: MetadataRequest, topics: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        if request.include_topic_authorized_operations:
            topics = [self._with_operations(context, topic) for topic in topics]
        cluster_operations = NOT_ASKED
        if request.include_cluster_authorized_operations:
            cluster_operations = self._cluster_operations(context)
        return MetadataResponse(
            cluster_authorized_operations=cluster_operations,
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in self._view.brokers(context.listener_name)
            ],
            cluster_id=self._view.cluster_id,
            controller_id=self._view.controller_for_clients(),
            topics=topics,
        )

    def _with_operations(
        self, context: RequestContext, topic: MetadataResponseTopic
    ) -> MetadataResponseTopic:
        if topic.error_code is not ErrorCode.none or topic.name is None:
            return topic
        operations = authorized_operations(self._authorizer, context, AclResourceType.TOPIC, topic.name)
        return replace(topic, topic_authorized_operations=operations)

    def _cluster_operations(self, context: RequestContext) -> int:
        return authorized_operations(self._authorizer, context, AclResourceType.CLUSTER, CLUSTER_NAME)

    def _find(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: MetadataRequestTopic,
        errors: dict[str, ErrorCode],
    ) -> MetadataResponseTopic:
        topics = self._view.image.topics
        if wanted.topic_id != ZERO_UUID:
            topic = topics.get_by_id(wanted.topic_id)
            if topic is None:
                return _failed(None, wanted.topic_id, ErrorCode.unknown_topic_id)
            return self._render(context, request, topic)
        name = wanted.name or ""
        if not self._authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.TOPIC, name):
            return _failed(name, ZERO_UUID, ErrorCode.topic_authorization_failed)
        topic = topics.get(name)
        if topic is None:
            error = errors.get(name) or self._creator.name_error(name) or ErrorCode.unknown_topic_or_partition
            return _failed(name, ZERO_UUID, error)
        return self._render(context, request, topic)

    def _visible(self, context: RequestContext, wanted: MetadataRequestTopic) -> Topic | None:
        """Return the topic that a request names, if the client may see it; None if the response to the
        request has an error instead (see :meth:`_find`)."""
        topics = self._view.image.topics
        if wanted.topic_id != ZERO_UUID:
            return topics.get_by_id(wanted.topic_id)
        name = wanted.name or ""
        if not self._authorizer.allows(context, AclOperation.DESCRIBE, AclResourceType.TOPIC, name):
            return None
        return topics.get(name)

    def _render(
        self, context: RequestContext, request: MetadataRequest, topic: Topic
    ) -> MetadataResponseTopic:
        """Describe the topic for clients of a listener and a rack. The description is cached until the image
        changes."""
        steps = self._render_steps(context, request, topic)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                rendered: MetadataResponseTopic = done.value
                return rendered

    def _render_steps(
        self, context: RequestContext, request: MetadataRequest, topic: Topic
    ) -> Generator[None, None, MetadataResponseTopic]:
        image = self._view.image
        if image is not self._rendered_from:
            self._rendered.clear()
            self._rendered_from = image
        racks = self._view.racks
        kind = kind_of(topic)
        by_rack = kind.rack_brokers
        rack = None if by_rack is None else racks.of_client(context.client_id)
        with_gateways = by_rack is not None and request.include_preferred_produce_brokers
        with_chunks = request.include_chunks
        place = (context.listener_name, rack, with_gateways, with_chunks, topic.name)
        cached = self._rendered.get(place)
        if cached is not None:
            return cached
        alive = {broker.node_id for broker in self._view.brokers(context.listener_name)}
        leader_of = racks.shown_leaders(topic, context.client_id, alive)
        known_gateways = racks.gateways_of(kind) if with_gateways else None
        partitions: list[MetadataResponsePartition] = []
        for start in range(0, len(topic.partitions), ROWS_A_TURN):
            if start:
                yield
            for index, partition in enumerate(topic.partitions[start : start + ROWS_A_TURN], start):
                gateways: Sequence[int] = ()
                if by_rack is not None and known_gateways is not None:
                    gateways = by_rack.produce(known_gateways, topic, index, rack)
                partitions.append(self._partition(index, partition, leader_of(index), alive, gateways))
        if with_chunks:
            yield from self._add_chunks(topic, partitions, alive)
        rendered = MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in MARKED_INTERNAL_TOPICS,
            partitions=partitions,
        )
        # The image may have changed since the first partition was described, or since the list of topics was
        # made.
        if image is self._rendered_from and image.topics.get_by_id(topic.topic_id) is topic:
            self._rendered[place] = rendered
        return rendered

    def _partition(
        self,
        index: int,
        partition: PartitionRegistration,
        leader: int,
        alive: set[int],
        gateways: Sequence[int] = (),
    ) -> MetadataResponsePartition:
        return MetadataResponsePartition(
            error_code=_partition_error(leader, alive),
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=self._view.offline_replicas(partition, alive),
            preferred_produce_brokers=gateways,
        )

    def _add_chunks(
        self, topic: Topic, partitions: list[MetadataResponsePartition], alive: set[int]
    ) -> Generator[None, None, None]:
        """Add the chunks of KIP-1114 to the entries of a topic's partitions in the response."""
        count = 0
        for index, partition in enumerate(topic.partitions):
            if partition.start_offset < 0:
                continue
            partitions[index] = replace(
                partitions[index],
                start_offset=partition.start_offset,
                start_timestamp=partition.start_timestamp_ms,
                chunks=[_chunk(chunk, alive) for chunk in partition.chunks],
            )
            count += len(partition.chunks)
            if count > ROWS_A_TURN:
                count = 0
                yield

    def describe_cluster(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != ENDPOINT_BROKERS:
            is_known = request.endpoint_type == ENDPOINT_CONTROLLERS
            raise KafkaError(
                ErrorCode.mismatched_endpoint_type if is_known else ErrorCode.unsupported_endpoint_type,
                "this listener belongs to a broker: ask for broker endpoints here",
            )
        return DescribeClusterResponse(
            cluster_id=self._view.cluster_id,
            controller_id=self._view.controller_for_clients(),
            cluster_authorized_operations=(
                self._cluster_operations(context)
                if request.include_cluster_authorized_operations
                else NOT_ASKED
            ),
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.node_id,
                    host=broker.host,
                    port=broker.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for broker in self._view.brokers(
                    context.listener_name, include_fenced=request.include_fenced_brokers
                )
            ],
        )


def _partition_error(leader: int, alive: set[int]) -> ErrorCode:
    return ErrorCode.none if leader in alive else ErrorCode.leader_not_available


def _chunk(chunk: ChunkRegistration, alive: set[int]) -> MetadataResponseChunk:
    return MetadataResponseChunk(
        start_offset=chunk.start_offset,
        start_timestamp=chunk.start_timestamp_ms,
        stop_offset=chunk.stop_offset,
        end_offset=chunk.end_offset,
        chunk_epoch=chunk.epoch,
        replica_nodes=chunk.replicas,
        isr_nodes=chunk.isr,
        offline_replicas=[each for each in chunk.replicas if each not in alive],
        adding_replicas=chunk.adding_replicas,
        removing_replicas=chunk.removing_replicas,
        max_timestamp=chunk.max_timestamp_ms,
        size_bytes=chunk.size_bytes,
    )


def _is_by_id(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != ZERO_UUID


def _failed(name: str | None, topic_id: UUID, error: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id)
