"""ReportChunks: brokers report which inactive chunks they have, and which chunks they have lost. Pure.

The controller adds a replica to the set of replicas that have an existing chunk only after such a report. A
fenced broker stays in this set. Its copy stays complete, because no record is ever added to an inactive
chunk.
"""

from dataclasses import replace

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.chunks.lookup import changed, chunk_of, partition_of_id, with_replicas
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.cluster.image.chunks import ChunkRegistration
from moldau.cluster.image.delta import image_of
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.protocol.own.chunks import report_chunks as messages
from moldau.protocol.records.metadata import ChunkChangeRecord
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError


def report_chunks(view: View, request: messages.ReportChunksRequest) -> ControllerResult:
    """Decide on each report of a broker separately.

    Raises ``KafkaError(stale_broker_epoch)`` for the whole request.
    """
    broker = registered(view, request.broker_id, request.broker_epoch)
    records: list[Message] = []
    results = []
    lost: list[str] = []
    for row in request.chunks:
        code, message = ErrorCode.none, None
        try:
            record = _reported(view, broker, row)
            if record is not None:
                records.append(record)
                # A request may name a chunk twice, so each row uses the result of the earlier rows.
                view = replace(view, image=image_of([record], view.image))
                if record.isr is not None and not record.isr:
                    lost.append(f"{row.topic_id}-{row.partition_index} at {row.start_offset}")
        except KafkaError as error:
            code, message = error.code, error.message
        results.append(
            messages.ReportedChunkResult(
                topic_id=row.topic_id,
                partition_index=row.partition_index,
                start_offset=row.start_offset,
                error_code=code,
                error_message=message,
            )
        )
    warning = f"no broker has all of these chunks: {', '.join(lost)}" if lost else ""
    return ControllerResult(messages.ReportChunksResponse(chunks=results), records, warning)


def _reported(
    view: View, broker: BrokerRegistration, row: messages.ReportedChunk
) -> ChunkChangeRecord | None:
    topic, _ = partition_of_id(view.image, row.topic_id, row.partition_index)
    found = chunk_of(topic, row.partition_index, row.start_offset)
    if broker.broker_id not in found.chunk.replicas:
        raise KafkaError(
            ErrorCode.not_leader_or_follower, f"Broker {broker.broker_id} is no replica of the chunk."
        )
    if row.chunk_epoch not in (-1, found.chunk.epoch):
        # The broker may have deleted its copy since, because the chunk was moved away and back.
        raise KafkaError(
            ErrorCode.invalid_update_version,
            f"The chunk has epoch {found.chunk.epoch}, not {row.chunk_epoch}: it has changed since.",
        )
    if not row.is_held:
        return changed(found, _without(found.chunk, broker.broker_id))
    if not broker.has_online(row.directory_id):
        raise KafkaError(ErrorCode.kafka_storage_error, "The log directory of the copy is not online.")
    assigned = (broker.broker_id, row.directory_id)
    chunk = found.chunk
    if broker.broker_id not in chunk.isr:
        chunk = replace(chunk, isr=(*chunk.isr, broker.broker_id))
    return changed(found, with_replicas(chunk, chunk.replicas, assigned))


def _without(chunk: ChunkRegistration, broker_id: int) -> ChunkRegistration:
    return replace(chunk, isr=tuple(each for each in chunk.isr if each != broker_id))
