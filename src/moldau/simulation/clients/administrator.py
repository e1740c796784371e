"""Operations of an administrator, which several scenarios use. Their random numbers come from the client."""

from collections.abc import Mapping

from moldau.protocol.partitions import TopicPartition
from moldau.protocol.special_timestamps import LATEST_TIMESTAMP
from moldau.simulation.clients.client import Producer, RetryError, Sending, SimulatedClient
from moldau.simulation.seeds import stream


async def open_passing_topic(
    client: SimulatedClient,
    topic: str,
    producer_name: str,
    configs: Mapping[str, str],
    *,
    records: int,
    pause_s: float,
) -> None:
    """Create a topic of two partitions, sometimes with a retention of 8 s, and produce into one of the
    partitions.
    """
    chance = client.chance
    retention = {"retention.ms": "8000"} if chance.random() < 0.5 else {}
    await client.create_topic(topic, 2, {**configs, **retention})
    partition = TopicPartition(topic, chance.randrange(2))
    producer = Producer(
        producer_name,
        client.bootstrap,
        client.history,
        stream(chance.getrandbits(32)),
        partition,
        Sending(idempotent=chance.random() < 0.5),
    )
    await producer.run(records, pause_s=pause_s)
    producer.disconnect()


async def delete_some_records(client: SimulatedClient, partition: TopicPartition) -> None:
    """Move the start of a partition to a random offset in the partition. If the request for the partition's
    end fails, do nothing."""
    try:
        end = await client.list_offset(partition, LATEST_TIMESTAMP)
    except (OSError, RetryError):
        return
    await client.delete_records(partition, client.chance.randint(0, end))
