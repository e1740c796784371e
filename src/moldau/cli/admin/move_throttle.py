"""The throttle of moves. It is set and removed in the same way as in ``kafka-reassign-partitions``
(KIP-73)."""

from collections.abc import Collection, Sequence
from typing import Final

from moldau.cli.admin.resource_configs import set_configs
from moldau.client.cluster import Client
from moldau.client.move_planning import PlannedMove

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"


def throttled_replicas(moves: Sequence[PlannedMove]) -> dict[str, dict[str, str]]:
    """Return the throttle configs of each topic. The existing replicas are throttled as leaders, because each
    of them may lead. The added replicas are throttled as followers."""
    found: dict[str, dict[str, list[str]]] = {}
    for move in moves:
        now, index = move.partition.replicas, move.partition.index
        configs = found.setdefault(move.partition.topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        configs[LEADER_REPLICAS] += [f"{index}:{each}" for each in now]
        configs[FOLLOWER_REPLICAS] += [f"{index}:{each}" for each in move.target if each not in now]
    return {
        topic: {key: ",".join(pairs) for key, pairs in configs.items() if pairs}
        for topic, configs in found.items()
    }


async def set_throttle(
    client: Client, moves: Sequence[PlannedMove], brokers: Collection[int], bytes_per_second: int
) -> None:
    """Set the throttle before the moves begin. ``brokers`` are the running brokers that take part in the
    moves.
    """
    for topic, configs in throttled_replicas(moves).items():
        await set_configs(client, "topic", topic, configs, [])
    rates = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(bytes_per_second))
    for broker_id in brokers:
        await set_configs(client, "broker", str(broker_id), rates, [])


async def remove_throttle(client: Client, moves: Sequence[PlannedMove], brokers: Collection[int]) -> None:
    """Remove the throttle when the moves are done."""
    for topic in throttled_replicas(moves):
        await set_configs(client, "topic", topic, {}, [LEADER_REPLICAS, FOLLOWER_REPLICAS])
    for broker_id in brokers:
        await set_configs(client, "broker", str(broker_id), {}, [LEADER_RATE, FOLLOWER_RATE])
