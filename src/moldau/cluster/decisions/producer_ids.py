"""Blocks of producer ids for brokers (KIP-730)."""

from moldau.cluster.decisions.brokers import registered
from moldau.cluster.decisions.view import ControllerResult, View
from moldau.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.protocol.records.metadata import ProducerIdsRecord
from moldau.runtime import ErrorCode, KafkaError

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(view: View, request: AllocateProducerIdsRequest) -> ControllerResult:
    """Allocate the next block of ids for a broker. A block that its broker loses is never used again."""
    registered(view, request.broker_id, request.broker_epoch)
    first = view.image.next_producer_id
    if first > PRODUCER_ID_MAX - BLOCK_SIZE:
        raise KafkaError(ErrorCode.unknown_server_error, "All producer ids are used up.")
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
    return ControllerResult(response, [record])
