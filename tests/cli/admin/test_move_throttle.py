"""Throttles of moves. Configs are set before the moves, and removed after the moves."""

import asyncio
from typing import Any, cast

from moldau.cli.admin.move_throttle import remove_throttle, set_throttle, throttled_replicas
from moldau.client.cluster import Client
from moldau.client.move_planning import PlacedPartition, PlannedMove
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

MOVES = [
    PlannedMove(PlacedPartition("a", 0, (1, 2), 10), (1, 3)),
    PlannedMove(PlacedPartition("a", 1, (2, 1), 10), (3, 1)),
    PlannedMove(PlacedPartition("b", 0, (1, 2), 10), (1,)),
]


class Recorder:
    """The configs of a cluster by resource, and the list of the brokers to which requests were sent."""

    def __init__(self) -> None:
        self.configs: dict[tuple[int | None, str], dict[str, str]] = {}

    async def ask(self, request: IncrementalAlterConfigsRequest, *, broker: int | None = None) -> Any:
        for resource in request.resources:
            configs = self.configs.setdefault((broker, resource.resource_name), {})
            for row in resource.configs:
                configs.pop(row.name, None)
                if row.value is not None:
                    configs[row.name] = row.value
        return IncrementalAlterConfigsResponse()


def test_existing_replicas_are_throttled_as_leaders_and_added_replicas_as_followers() -> None:
    assert throttled_replicas(MOVES) == {
        "a": {
            "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:1",
            "follower.replication.throttled.replicas": "0:3,1:3",
        },
        "b": {"leader.replication.throttled.replicas": "0:1,0:2"},
    }


def test_a_throttle_is_set_on_topics_and_brokers_and_removed() -> None:
    cluster = Recorder()
    client = cast(Client, cluster)
    asyncio.run(set_throttle(client, MOVES, [1, 3], 5_000))
    rates = {"leader.replication.throttled.rate": "5000", "follower.replication.throttled.rate": "5000"}
    topics = {(None, topic): configs for topic, configs in throttled_replicas(MOVES).items()}
    assert cluster.configs == {(1, "1"): rates, (3, "3"): rates, **topics}
    asyncio.run(remove_throttle(client, MOVES, [1, 3]))
    assert not any(cluster.configs.values())
