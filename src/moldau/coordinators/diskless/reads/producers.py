"""The producers of a partition, as DescribeProducers shows them."""

from moldau.coordinators.diskless.calls import PartitionId, ProducerOfPartition, ProducersOfPartition
from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.producers import opened
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.runtime import ErrorCode


def describe_producers(shard: DisklessShard, wanted: PartitionId) -> ProducersOfPartition:
    """Return the producers whose last batches the partition stores. The error is UNKNOWN_TOPIC_OR_PARTITION
    if there is no such partition."""
    partition = shard.partitions.find(*wanted)
    if partition is None:
        message = "This coordinator has no such partition."
        return ProducersOfPartition(*wanted, ErrorCode.unknown_topic_or_partition, message)
    producers = [_described(partition, producer_id) for producer_id in partition.producers]
    return ProducersOfPartition(*wanted, producers=producers)


def _described(partition: PartitionState, producer_id: int) -> ProducerOfPartition:
    window = opened(partition.producers[producer_id])
    first_offset, coordinator_epoch = (
        (-1, -1) if partition.transactions is None else partition.transactions.row(producer_id)
    )
    last_sequence = window.entries[-1][1]
    return ProducerOfPartition(
        producer_id, window.epoch, last_sequence, window.time_ms, coordinator_epoch, first_offset
    )
