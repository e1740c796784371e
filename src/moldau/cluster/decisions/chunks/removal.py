"""DropChunks removes the chunks below the first offset of a partition (KIP-1114's automatic deletion). Pure.

The first offset of a partition rises by retention, or by a client's DeleteRecords. In Moldau only the
partition's leader decides on this offset, so all brokers of a chunk delete the same records. In the KIP each
broker of a chunk makes its own decision.
"""

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.chunks.lookup import partition_of_id
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.protocol.own.chunks import drop_chunks as messages
from moldau.protocol.records.metadata import ChunkChangeRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def drop_chunks(view: View, request: messages.DropChunksRequest) -> ControllerResult:
    """Remove the chunks that end below the first offset of their partition.

    Raises ``KafkaError(stale_broker_epoch)`` for the whole request. Other refusals are per partition.
    """
    registered(view, request.broker_id, request.broker_epoch)
    records: dict[tuple[object, int, int], Message] = {}
    results = []
    for row in request.partitions:
        code, message = ErrorCode.none, None
        try:
            for record in _dropped(view, request.broker_id, row):
                # A request may name a partition twice. The mapping still has only one record for each chunk.
                records[record.topic_id, record.partition_id, record.start_offset] = record
        except KafkaError as error:
            code, message = error.code, error.message
        results.append(
            messages.DropChunksResult(
                topic_id=row.topic_id,
                partition_index=row.partition_index,
                error_code=code,
                error_message=message,
            )
        )
    return ControllerResult(messages.DropChunksResponse(partitions=results), list(records.values()))


def _dropped(view: View, sender_id: int, row: messages.DropChunksPartition) -> list[ChunkChangeRecord]:
    topic, partition = partition_of_id(view.image, row.topic_id, row.partition_index)
    if row.leader_epoch > partition.leader_epoch:
        raise KafkaError(ErrorCode.not_controller, "The leader knows a later epoch than this controller.")
    if row.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.fenced_leader_epoch, "A later leader was elected.")
    if sender_id != partition.leader:
        raise KafkaError(ErrorCode.not_leader_or_follower, f"Broker {sender_id} does not lead the partition.")
    return [
        ChunkChangeRecord(
            partition_id=row.partition_index,
            topic_id=topic.topic_id,
            start_offset=chunk.start_offset,
            chunk_epoch=chunk.epoch + 1,
            replicas=(),
        )
        for chunk in partition.chunks
        if chunk.end_offset < row.log_start_offset
    ]
