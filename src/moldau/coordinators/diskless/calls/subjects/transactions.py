"""The calls of transactions. Guards are issued before batches are committed, and markers are written after a
transaction has ended."""

from collections.abc import Sequence
from typing import Any, Final

from moldau.coordinators.diskless import calls
from moldau.coordinators.diskless.calls.declaration import DisklessCall, Fields
from moldau.coordinators.diskless.calls.grouping import (
    distinct_partitions,
    late_topics_of,
    rows_of,
    topics_of,
)
from moldau.protocol.own.diskless import describe_producers as producers_wire
from moldau.protocol.own.diskless import end_transactions as end_wire
from moldau.protocol.own.diskless import guard_transactions as guard_wire
from moldau.protocol.own.rights import Right
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.rows import PARTITIONS

# -- guards ------------------------------------------------------------------------------------


def _guard_fields(wanted: Sequence[calls.GuardToIssue], version: int) -> Fields:
    return topics_of(
        wanted,
        guard_wire.DisklessGuardedTopic,
        lambda row: guard_wire.DisklessGuardedPartition(
            partition_index=row.partition_index,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
        ),
    )


def _guard_arguments(request: Any) -> Sequence[calls.GuardToIssue]:
    return rows_of(
        request,
        lambda topic_id, row: calls.GuardToIssue(
            topic_id, row.partition_index, row.producer_id, row.producer_epoch
        ),
    )


def _guarded_fields(results: Sequence[calls.IssuedGuard], version: int) -> Fields:
    return topics_of(
        results,
        guard_wire.DisklessGuardedTopicResult,
        lambda found: guard_wire.DisklessGuardedPartitionResult(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            guard=found.guard,
        ),
    )


def _guarded(response: Any) -> list[calls.IssuedGuard]:
    return rows_of(
        response,
        lambda topic_id, row: calls.IssuedGuard(
            topic_id, row.partition_index, row.error_code, row.error_message, row.guard
        ),
    )


GUARD_TRANSACTIONS: Final = DisklessCall(
    request=guard_wire.REQUEST,
    response=guard_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, wanted: coordinators.guard_transactions(
        coordinator_id, wanted
    ),
    request_fields=_guard_fields,
    arguments=_guard_arguments,
    response_fields=_guarded_fields,
    result=_guarded,
    cuts=(PARTITIONS,),
)

# -- markers -----------------------------------------------------------------------------------


def _end_fields(markers: Sequence[calls.MarkerToWrite], version: int) -> Fields:
    return topics_of(
        markers,
        end_wire.DisklessEndedTopic,
        lambda row: end_wire.DisklessEndedPartition(
            partition_index=row.partition_index,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            coordinator_epoch=row.coordinator_epoch,
            committed=row.committed,
            transaction_version=row.transaction_version,
            decision_partition=row.decision_partition,
            decision_offset=row.decision_offset,
        ),
    )


def _end_arguments(request: Any) -> Sequence[calls.MarkerToWrite]:
    return rows_of(
        request,
        lambda topic_id, row: calls.MarkerToWrite(
            topic_id,
            row.partition_index,
            row.producer_id,
            row.producer_epoch,
            row.coordinator_epoch,
            row.committed,
            row.transaction_version,
            row.decision_partition,
            row.decision_offset,
        ),
    )


def _ended_fields(results: Sequence[calls.EndedTransactionPart], version: int) -> Fields:
    return topics_of(
        results,
        end_wire.DisklessEndedTopicResult,
        lambda found: end_wire.DisklessEndedPartitionResult(
            partition_index=found.partition_index, error_code=found.error, error_message=found.message
        ),
    )


def _ended(response: Any) -> list[calls.EndedTransactionPart]:
    return rows_of(
        response,
        lambda topic_id, row: calls.EndedTransactionPart(
            topic_id, row.partition_index, row.error_code, row.error_message
        ),
    )


END_TRANSACTIONS: Final = DisklessCall(
    request=end_wire.REQUEST,
    response=end_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, markers: coordinators.end_transactions(
        coordinator_id, markers
    ),
    request_fields=_end_fields,
    arguments=_end_arguments,
    response_fields=_ended_fields,
    result=_ended,
    cuts=(PARTITIONS,),
)

# -- producers ---------------------------------------------------------------------------------


def _describe_fields(wanted: Sequence[PartitionKey], version: int) -> Fields:
    return topics_of(
        wanted,
        producers_wire.DisklessTopicToDescribe,
        lambda row: producers_wire.DisklessPartitionToDescribe(partition_index=row.partition),
    )


def _describe_arguments(request: Any) -> Sequence[PartitionKey]:
    return rows_of(request, lambda topic_id, row: PartitionKey(topic_id, row.partition_index))


def _producer(found: calls.ProducerOfPartition) -> producers_wire.DisklessProducer:
    return producers_wire.DisklessProducer(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        last_sequence=found.last_sequence,
        last_timestamp=found.last_timestamp_ms,
        coordinator_epoch=found.coordinator_epoch,
        current_txn_start_offset=found.current_transaction_start_offset,
    )


def _producers_fields(results: Sequence[calls.ProducersOfPartition], version: int) -> Fields:
    return late_topics_of(
        results,
        producers_wire.DisklessTopicProducers,
        lambda found: producers_wire.DisklessPartitionProducers(
            partition_index=found.partition_index,
            error_code=found.error,
            error_message=found.message,
            producers=[_producer(each) for each in found.producers],
        ),
    )


def _producers(response: Any) -> list[calls.ProducersOfPartition]:
    return rows_of(
        response,
        lambda topic_id, row: calls.ProducersOfPartition(
            topic_id,
            row.partition_index,
            row.error_code,
            row.error_message,
            [
                calls.ProducerOfPartition(
                    each.producer_id,
                    each.producer_epoch,
                    each.last_sequence,
                    each.last_timestamp,
                    each.coordinator_epoch,
                    each.current_txn_start_offset,
                )
                for each in row.producers
            ],
        ),
    )


DESCRIBE_PRODUCERS: Final = DisklessCall(
    request=producers_wire.REQUEST,
    response=producers_wire.RESPONSE,
    right=Right.CLUSTER_ACTION,
    serve=lambda coordinators, coordinator_id, wanted: coordinators.describe_producers(
        coordinator_id, wanted
    ),
    request_fields=_describe_fields,
    arguments=_describe_arguments,
    response_fields=_producers_fields,
    result=_producers,
    # A request is divided after a few rows, because each partition may have thousands of producers.
    cuts=(PARTITIONS._replace(rows=16, distinct=distinct_partitions),),
    # The limit is low, because three bytes of a request may cause an entry of some hundred bytes in the
    # response.
    parsed_bytes_max=2 * 1024 * 1024,
)
