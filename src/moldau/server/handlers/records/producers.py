"""InitProducerId for idempotent producers, and DescribeProducers."""

from moldau.cluster.decisions.topic_names import check_name
from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import describe_producers as description
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.requests.dispatch import Handler
from moldau.server.topics.producer_ids import ProducerIds
from moldau.server.topics.registry import PartitionRegistry


class ProducerHandlers:
    """Handlers of producers' requests other than Produce."""

    def __init__(self, producer_ids: ProducerIds, partitions: PartitionRegistry) -> None:
        self._producer_ids = producer_ids
        self._partitions = partitions

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    async def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        if request.transactional_id is not None:
            # Not retriable. A client at this point does not show the text of FindCoordinator's error, so the
            # code must express it.
            return InitProducerIdResponse(error_code=ErrorCode.unsupported_version)
        try:
            producer_id = await self._producer_ids.next_id()
        except KafkaError as error:
            return InitProducerIdResponse(error_code=error.code)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def describe_producers(
        self, context: RequestContext, request: description.DescribeProducersRequest
    ) -> description.DescribeProducersResponse:
        return description.DescribeProducersResponse(
            topics=[
                description.TopicResponse(
                    name=topic.name,
                    partitions=[self._describe(topic.name, index) for index in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    def _describe(self, topic: str, index: int) -> description.PartitionResponse:
        try:
            check_name(topic)
            partition = self._partitions.find(topic, ZERO_UUID, index)
        except KafkaError as error:
            return description.PartitionResponse(partition_index=index, error_code=error.code)
        return description.PartitionResponse(
            partition_index=index,
            active_producers=[
                description.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_transaction_start_offset,
                )
                for producer in partition.state().active_producers
            ],
        )
