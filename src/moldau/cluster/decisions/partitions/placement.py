"""The placement of new partitions' replicas.

The goals are as follows, the most important goal first. The first replica (the preferred leader) is on an
active broker. Active brokers are chosen before inactive brokers. As many racks as possible are used. Leaders,
and then replicas, are spread evenly over brokers. If brokers are equal, one of them is chosen at random.
Without the random choice, all partitions that have replicas on the same two brokers would also have their
third replica on the same broker.
"""

import uuid
from collections.abc import Iterable

from moldau.cluster.image.directories import UNASSIGNED_DIRECTORY
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.runtime import Entropy, ErrorCode, KafkaError


def place(
    brokers: Iterable[BrokerRegistration], partition_count: int, replication_factor: int, entropy: Entropy
) -> list[tuple[int, ...]]:
    """Replicas of each partition, the preferred leader first. Raises
    ``KafkaError(invalid_replication_factor)``.
    """
    registered = list(brokers)
    if replication_factor > len(registered):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Replication factor {replication_factor} is larger than the "
            f"{len(registered)} registered brokers.",
        )
    if not any(broker.is_active for broker in registered):
        raise KafkaError(
            ErrorCode.invalid_replication_factor, "All brokers are fenced or in controlled shutdown."
        )
    leader_counts = dict.fromkeys((broker.broker_id for broker in registered), 0)
    replica_counts = dict(leader_counts)
    placed = []
    for _ in range(partition_count):
        order = entropy.shuffled(registered)
        replicas = _place_one(order, replication_factor, leader_counts, replica_counts)
        leader_counts[replicas[0]] += 1
        for replica in replicas:
            replica_counts[replica] += 1
        placed.append(replicas)
    return placed


def _place_one(
    brokers: list[BrokerRegistration],
    replication_factor: int,
    leader_counts: dict[int, int],
    replica_counts: dict[int, int],
) -> tuple[int, ...]:
    leader = min(
        brokers,
        key=lambda broker: (
            not broker.is_active,
            leader_counts[broker.broker_id],
            replica_counts[broker.broker_id],
        ),
    )
    chosen = [leader]
    rack_counts = {leader.rack: 1}
    rest = [broker for broker in brokers if broker is not leader]
    while len(chosen) < replication_factor:
        follower = min(
            rest,
            key=lambda broker: (
                not broker.is_active,
                rack_counts.get(broker.rack, 0),
                replica_counts[broker.broker_id],
            ),
        )
        rest.remove(follower)
        chosen.append(follower)
        rack_counts[follower.rack] = rack_counts.get(follower.rack, 0) + 1
    return tuple(broker.broker_id for broker in chosen)


def check_assignment(
    image: MetadataImage, index: int, replicas: tuple[int, ...], replication_factor: int | None
) -> None:
    """Raise ``KafkaError(invalid_replica_assignment)`` for an invalid manual assignment."""
    reason = _assignment_fault(image, index, replicas, replication_factor)
    if reason is not None:
        raise KafkaError(ErrorCode.invalid_replica_assignment, reason)


def _assignment_fault(
    image: MetadataImage, index: int, replicas: tuple[int, ...], replication_factor: int | None
) -> str | None:
    if not replicas:
        return f"The assignment of partition {index} has no replicas."
    if len(set(replicas)) != len(replicas):
        return f"The assignment of partition {index} names a broker twice."
    for broker_id in replicas:
        if broker_id not in image.brokers:
            return f"The assignment of partition {index} names broker {broker_id}, which is not registered."
    if replication_factor is not None and len(replicas) != replication_factor:
        return f"The assignment of partition {index} has {len(replicas)} replicas, not {replication_factor}."
    return None


def default_directory(image: MetadataImage, broker_id: int) -> uuid.UUID:
    """Return a broker's log directory if it has exactly one. Otherwise the result is the id for "unassigned":
    a broker with several directories chooses one of them itself (KIP-858).
    """
    broker = image.brokers.get(broker_id)
    if broker is not None and len(broker.log_dirs) == 1:
        return broker.log_dirs[0]
    return UNASSIGNED_DIRECTORY
