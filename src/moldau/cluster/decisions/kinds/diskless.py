"""Diskless topics. This module decides which topics may be diskless, and which owner each of their partitions
gets (KIP-1164).

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from moldau.cluster.decisions.kinds.kind import RackBrokers, TopicKind
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import ResourceType
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, INTERNAL_TOPICS
from moldau.cluster.racks.gateways import Gateways
from moldau.runtime import ErrorCode, KafkaError

DISKLESS_FEATURE: Final = "moldau.diskless.version"
DISKLESS_LATEST: Final = 1
"""From level 1 on, topics may be diskless. The records of their partitions name an owner in a field that only
Moldau has."""
DISKLESS_ENABLE = "diskless.enable"
CLEANUP_POLICY = "cleanup.policy"


def _reason_against(view: View, name: str, configs: Mapping[str, str]) -> str | None:
    if name in INTERNAL_TOPICS:
        return f"The internal topic {name} cannot be diskless."
    if _is_compacted(view, configs):
        return f"A topic with {DISKLESS_ENABLE}=true cannot have {CLEANUP_POLICY}=compact yet."
    return None


def _check_configs(view: View, name: str, configs: Mapping[str, str]) -> None:
    if _is_compacted(view, configs):
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Topic {name} is diskless and cannot have {CLEANUP_POLICY}=compact yet.",
        )


def assign_coordinators(load: Mapping[int, int], metadata_partitions: int, count: int) -> list[int]:
    """Choose an owner for each of ``count`` new user partitions. The least loaded owner is chosen. If loads
    are equal, the lowest number is chosen.

    ``load`` contains, for each partition of ``__diskless_metadata``, the number of user partitions that it
    owns.
    """
    loads = [load.get(owner, 0) for owner in range(metadata_partitions)]
    owners = []
    for _ in range(count):
        owner = min(range(metadata_partitions), key=loads.__getitem__)
        loads[owner] += 1
        owners.append(owner)
    return owners


def _owners(view: View, count: int) -> list[int]:
    """Owners of ``count`` new partitions of a topic.

    An owner is the number of an existing partition of ``__diskless_metadata``. The number of existing
    partitions may differ from the number in a node's configuration. Raises
    ``KafkaError(coordinator_not_available)`` while that topic does not exist.
    """
    metadata = view.image.topics.get(DISKLESS_METADATA_TOPIC)
    if metadata is None:
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"{DISKLESS_METADATA_TOPIC} does not exist yet; try again."
        )
    return assign_coordinators(DISKLESS.load(view.image), len(metadata.partitions), count)


def _is_compacted(view: View, configs: Mapping[str, str]) -> bool:
    policy = configs.get(CLEANUP_POLICY)
    if policy is None:
        policy = view.configs.default(ResourceType.TOPIC, CLEANUP_POLICY) or ""
    return "compact" in (part.strip() for part in policy.split(","))


def _leader_of_rack(
    gateways: Gateways, topic: Topic, index: int, rack: str | None, reachable: Collection[int]
) -> int:
    """Return the gateway of the client's rack for a partition. Clients of the rack use the gateway as the
    leader.

    If the client's rack is unknown, or this rack has no gateway that the client can reach, the result is the
    leader in the metadata.
    """
    partition = topic.partitions[index]
    if rack is not None:
        found = gateways.of_partition(topic.topic_id, index, partition.owner, rack)
        if found is not None and found in reachable:
            return found
    return partition.leader


def _preferred_produce_brokers(
    gateways: Gateways, topic: Topic, index: int, rack: str | None
) -> Sequence[int]:
    """Return the gateways in the client's rack; the first one is preferred.

    If the rack is unknown or has no gateway, the result contains the partition's gateway of each rack, in the
    order of the racks' names.
    """
    owner = topic.partitions[index].owner
    if rack is not None:
        first = gateways.of_partition(topic.topic_id, index, owner, rack)
        if first is not None:
            return [first, *(each for each in gateways.of(owner, rack) if each != first)]
    found = (gateways.of_partition(topic.topic_id, index, owner, each) for each in gateways.racks)
    return [broker_id for broker_id in found if broker_id is not None]


DISKLESS: Final = TopicKind(
    name="diskless",
    is_marked=False,
    config_key=DISKLESS_ENABLE,
    enable_key="diskless.system.enable",
    feature=SupportedFeature(DISKLESS_FEATURE, 0, DISKLESS_LATEST),
    reason_against=_reason_against,
    check_configs=_check_configs,
    owners=_owners,
    metadata_topic=DISKLESS_METADATA_TOPIC,
    replicas_hold_data=False,
    # The local log is only a cache, so its segments need no copies in the remote tier. Its leader epochs
    # differ from the leader epochs in the metadata.
    has_remote_tier=False,
    has_cluster_epochs=False,
    # Consolidation makes the segments in the remote tier.
    may_have_remote_segments=True,
    no_chunks="its records are in the object store and not on brokers, so that a chunk would move nothing",
    rack_brokers=RackBrokers(leader=_leader_of_rack, produce=_preferred_produce_brokers),
)
