"""The conditions under which a new chunk may begin. The partition's leader and the controller both check
these conditions. Pure."""

from collections.abc import Callable, Sequence

from moldau.cluster.decisions.kinds.table import kind_of
from moldau.cluster.decisions.own_features import check_chunks_allowed
from moldau.cluster.decisions.partitions.placement import check_assignment
from moldau.cluster.image.image import MetadataImage
from moldau.cluster.image.partition import LeaderRecoveryState, PartitionRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import INTERNAL_TOPICS
from moldau.runtime import ErrorCode, KafkaError

Config = Callable[[str], str | None]
"""Returns the effective value of a topic's config; ``None`` for an unknown key."""


def check_topic(image: MetadataImage, topic: Topic, config: Config) -> None:
    """Raise ``KafkaError`` if the partitions of a topic cannot have chunks.

    The code is unsupported_version if the cluster's feature level is too low. Otherwise it is
    invalid_request.
    """
    check_chunks_allowed(image)
    kind = kind_of(topic)
    if kind.no_chunks is not None:
        raise _invalid(f"Topic {topic.name} is {kind.name}: {kind.no_chunks}.")
    if topic.name in INTERNAL_TOPICS:
        raise _invalid(f"Topic {topic.name} is internal: its coordinators read whole partitions.")
    reason = reason_of_config(config)
    if reason is not None:
        raise _invalid(f"Topic {topic.name} {reason}.")


def reason_of_config(config: Config) -> str | None:
    """Return the reason why a topic with these configs cannot have chunks. The text is the end of a sentence
    about the topic."""
    policy = config("cleanup.policy") or ""
    if "compact" in (part.strip() for part in policy.split(",")):
        return "is compacted: compaction changes old records, and the records of a chunk never change"
    return None


def is_tiered(config: Config) -> bool:
    """Whether the partitions of a topic with these configs have a remote tier."""
    return (config("remote.storage.enable") or "").strip().lower() == "true"


def check_partition(partition: PartitionRegistration) -> None:
    """Raise ``KafkaError`` while another change of the partition is in progress."""
    if partition.is_reassigning:
        raise KafkaError(
            ErrorCode.reassignment_in_progress, "The partition is being reassigned; wait, or cancel it."
        )
    if partition.leader_recovery_state is not LeaderRecoveryState.RECOVERED:
        raise _invalid("The leader is recovering from an unclean election.")


def check_brokers(
    image: MetadataImage, index: int, partition: PartitionRegistration, broker_ids: Sequence[int]
) -> None:
    """Raise ``KafkaError`` if a chunk cannot begin on these brokers.

    The code is invalid_replica_assignment if a broker is unknown, inactive or named twice. The code is
    invalid_replication_factor if the number of brokers is not the partition's number of replicas.
    """
    check_assignment(image, index, tuple(broker_ids), None)
    count = len(original_replicas(partition.replicas, partition.adding_replicas))
    if len(broker_ids) != count:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"A chunk of this partition has {count} replicas, not {len(broker_ids)}.",
        )
    check_active(image, broker_ids)


def check_active(image: MetadataImage, broker_ids: Sequence[int]) -> None:
    """Raise ``KafkaError(invalid_replica_assignment)`` for a broker that is fenced or shutting down."""
    for broker_id in broker_ids:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.is_active:
            raise KafkaError(ErrorCode.invalid_replica_assignment, f"Broker {broker_id} is not active.")


def original_replicas(replicas: Sequence[int], adding: Sequence[int]) -> tuple[int, ...]:
    """Return the replicas that the chunk had before the move in progress. If no move is in progress, these
    are the current replicas."""
    return tuple(each for each in replicas if each not in adding)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
