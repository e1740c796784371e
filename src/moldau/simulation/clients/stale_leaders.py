"""Detects leaders that were replaced and do not know it yet.

Such a leader may end before a consumer's position, so it answers OFFSET_OUT_OF_RANGE, as in Kafka. Real
consumers send the leader epoch from their metadata, and then get UNKNOWN_LEADER_EPOCH instead (KIP-320). The
consumers of the simulation send no epoch, because brokers must serve old clients too. So the epochs are
compared here.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.partitions import TopicPartition
from moldau.simulation.clients.rpc import RpcConnection

_METADATA_VERSION: Final = 9


class BrokerPlace(Protocol):
    """The address of a broker."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


async def is_replaced(
    connection: RpcConnection, partition: TopicPartition, name: str, brokers: Iterable[BrokerPlace]
) -> bool:
    """Whether one of ``brokers`` knows a newer leader epoch of the partition than the broker at the other end
    of ``connection``. Brokers that do not answer are left out. Raises OSError if this connection fails."""
    own_epoch = await _leader_epoch(connection, partition)
    for broker in brokers:
        try:
            other = await RpcConnection.open(name, broker.host, broker.port)
            epoch = await _leader_epoch(other, partition)
            other.close()
        except OSError:
            continue
        if epoch > own_epoch:
            return True
    return False


async def _leader_epoch(connection: RpcConnection, partition: TopicPartition) -> int:
    """The leader epoch in a broker's metadata; -1 if the broker does not know the partition."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=partition.topic)])
    response = await connection.request(ApiKey.METADATA, _METADATA_VERSION, request)
    epochs = (
        row.leader_epoch
        for topic in response.topics
        for row in topic.partitions
        if (topic.name, row.partition_index) == partition
    )
    return next(epochs, -1)
