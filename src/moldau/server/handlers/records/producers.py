"""DescribeProducers."""

from moldau.cluster.decisions.topic_names import check_name
from moldau.network.context import RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.messages import describe_producers as description
from moldau.protocol.schema import ZERO_UUID
from moldau.runtime.errors import KafkaError
from moldau.server.requests.dispatch import Handler
from moldau.server.topics.registry import PartitionRegistry


class ProducerHandlers:
    """The producers that partitions remember."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions

    def table(self) -> dict[int, Handler]:
        return {ApiKey.DESCRIBE_PRODUCERS: self.describe_producers}

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
