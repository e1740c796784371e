"""Diskless topics: the topics that may be diskless, and the owner of each of their partitions (KIP-1164).

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from moldau.cluster.decisions.kinds.kind import RackBrokers, TopicKind, is_true
from moldau.cluster.decisions.own_features import (
    DISKLESS_FEATURE,
    DISKLESS_LATEST,
    check_diskless_allowed,
)
from moldau.cluster.decisions.view import View
from moldau.cluster.image.image import ResourceType
from moldau.cluster.image.registrations import SupportedFeature
from moldau.cluster.image.topics_image import Topic
from moldau.cluster.internal_topics import DISKLESS_METADATA_TOPIC, INTERNAL_TOPICS
from moldau.cluster.racks.gateways import Gateways
from moldau.runtime import ErrorCode, KafkaError

DISKLESS_ENABLE = "diskless.enable"
CLEANUP_POLICY = "cleanup.policy"


def _new_configs(view: View, name: str, configs: Mapping[str, str]) -> dict[str, str]:
    """The configs to record for a new topic.

    If diskless is this cluster's default, a topic without the config becomes diskless. The config is then
    recorded, because later changes of the default must not affect the topic. Internal and compacted topics,
    which cannot be diskless, stay classic. Raises ``KafkaError(invalid_config)`` when such a topic requests
    to be diskless, and while the level of the cluster's feature allows no diskless topic.
    """
    if name == DISKLESS_METADATA_TOPIC:
        check_diskless_allowed(view, f"The topic {name}")
    resolved = dict(configs)
    requested = configs.get(DISKLESS_ENABLE)
    possible = name not in INTERNAL_TOPICS and not _is_compacted(view, configs)
    if requested is None:
        default = view.configs.default(ResourceType.TOPIC, DISKLESS_ENABLE)
        if is_true(default) and possible and DISKLESS.is_enabled(view.settings):
            check_diskless_allowed(view, f"A topic without {DISKLESS_ENABLE}=false")
            resolved[DISKLESS_ENABLE] = "true"
        return resolved
    if not is_true(requested):
        return resolved
    if not DISKLESS.is_enabled(view.settings):
        raise _invalid(f"{DISKLESS_ENABLE}=true needs {DISKLESS.enable_key}=true on the cluster.")
    if name in INTERNAL_TOPICS:
        raise _invalid(f"The internal topic {name} cannot be diskless.")
    if not possible:
        raise _invalid(f"A topic with {DISKLESS_ENABLE}=true cannot have {CLEANUP_POLICY}=compact yet.")
    check_diskless_allowed(view, f"A topic with {DISKLESS_ENABLE}=true")
    return resolved


def _check_configs(view: View, name: str, configs: Mapping[str, str]) -> None:
    if _is_compacted(view, configs):
        raise _invalid(f"Topic {name} is diskless and cannot have {CLEANUP_POLICY}=compact yet.")


def assign_coordinators(load: Mapping[int, int], metadata_partitions: int, count: int) -> list[int]:
    """An owner for each of ``count`` new user partitions. The least loaded owner is chosen, and among equal
    loads the lowest number.

    ``load`` is the number of user partitions that each partition of ``__diskless_metadata`` owns.
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

    The coordinators are the existing partitions of ``__diskless_metadata``. Their number may differ from a
    node's configuration. Raises ``KafkaError(coordinator_not_available)`` while that topic does not exist.
    """
    metadata = view.image.topics.get(DISKLESS_METADATA_TOPIC)
    if metadata is None:
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"{DISKLESS_METADATA_TOPIC} does not exist yet; try again."
        )
    load = dict(view.image.topics.diskless_load.items())
    return assign_coordinators(load, len(metadata.partitions), count)


def _is_compacted(view: View, configs: Mapping[str, str]) -> bool:
    policy = configs.get(CLEANUP_POLICY)
    if policy is None:
        policy = view.configs.default(ResourceType.TOPIC, CLEANUP_POLICY) or ""
    return "compact" in (part.strip() for part in policy.split(","))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_config, message)


def _leader_of_rack(
    gateways: Gateways, topic: Topic, index: int, rack: str | None, reachable: Collection[int]
) -> int:
    """The rack's gateway, which clients of the rack use as the leader.

    It is the leader in the metadata when the rack has no gateway or the client's rack is unknown.
    """
    partition = topic.partitions[index]
    if rack is not None:
        found = gateways.of_partition(topic.topic_id, index, partition.diskless_coordinator, rack)
        if found is not None and found in reachable:
            return found
    return partition.leader


def _preferred_produce_brokers(
    gateways: Gateways, topic: Topic, index: int, rack: str | None
) -> Sequence[int]:
    """The gateways in the client's rack, best first.

    When the rack is unknown, the result is the partition's gateway in each rack, in the order of the
    racks' names.
    """
    owner = topic.partitions[index].diskless_coordinator
    if rack is not None:
        first = gateways.of_partition(topic.topic_id, index, owner, rack)
        if first is not None:
            return [first, *(each for each in gateways.of(owner, rack) if each != first)]
    found = (gateways.of_partition(topic.topic_id, index, owner, each) for each in gateways.racks)
    return [broker_id for broker_id in found if broker_id is not None]


DISKLESS: Final = TopicKind(
    name="diskless",
    is_kind_of=lambda topic: topic.is_diskless,
    config_key=DISKLESS_ENABLE,
    enable_key="diskless.system.enable",
    feature=SupportedFeature(DISKLESS_FEATURE, 0, DISKLESS_LATEST),
    new_configs=_new_configs,
    check_configs=_check_configs,
    owners=_owners,
    metadata_topic=DISKLESS_METADATA_TOPIC,
    replicas_hold_data=False,
    # The local log is only a cache, so its segments need no copies in the tier. Its epochs are not those of
    # the metadata.
    has_remote_tier=False,
    has_cluster_epochs=False,
    # Consolidation makes the segments in the remote tier.
    may_have_remote_segments=True,
    no_chunks="its records are in the object store and not on brokers, so that a chunk would move nothing",
    rack_brokers=RackBrokers(leader=_leader_of_rack, produce=_preferred_produce_brokers),
)
