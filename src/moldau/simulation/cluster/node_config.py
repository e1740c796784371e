"""The configuration of nodes that replicate partitions. The times are virtual."""

from collections.abc import Mapping, Sequence
from typing import Final

from moldau.config.broker import BrokerConfig

BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093

_COMMON: Final = {
    "controller.listener.names": "CONTROLLER",
    # No-op records are rare, because more of them would take much of a run's time and change little.
    "metadata.max.idle.interval.ms": "5000",
    "log.dirs": "/data",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    # Short timeouts. They make it possible that in a run brokers are fenced and followers leave the in-sync
    # sets.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "1500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "replica.socket.timeout.ms": "1500",
    # Segments are rolled often, so that every run has rolls and recoveries.
    "log.roll.ms": "400",
    "log.index.interval.bytes": "256",
}


def node_config(
    node_id: int, broker_ids: Sequence[int], controller_ids: Sequence[int], properties: Mapping[str, str]
) -> BrokerConfig:
    """The configuration of a node. The node has those roles in which its id is listed. All controllers are
    static voters."""
    listeners: dict[str, str] = {}
    if node_id in broker_ids:
        listeners["broker"] = f"PLAINTEXT://node-{node_id}:{BROKER_PORT}"
    if node_id in controller_ids:
        listeners["controller"] = f"CONTROLLER://node-{node_id}:{CONTROLLER_PORT}"
    voters = (f"{voter}@node-{voter}:{CONTROLLER_PORT}" for voter in controller_ids)
    return BrokerConfig.from_properties(
        {
            **_COMMON,
            **properties,
            "node.id": str(node_id),
            "process.roles": ",".join(listeners),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(listeners.values()),
        }
    )
