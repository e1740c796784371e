"""The immutable metadata image: the state of the cluster at one committed offset of the metadata log."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NewType

from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import BrokerRegistration, ControllerRegistration
from moldau.cluster.image.topics_image import TopicsImage
from moldau.protocol.records.metadata import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
)


class ResourceType(IntEnum):
    """Kafka's numbers of the resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


ConfigResource = tuple[int, str]
"""A pair: the resource type and the resource name. A broker's name is its id. The name of the cluster-wide
default is empty."""

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of an entity type and an entity name, sorted by type. The name ``None`` is the default entity."""

FeatureLevel = NewType("FeatureLevel", int)

OWN_PREFIX = "moldau."
"""The prefix of the names of Moldau's own features."""
CHUNK_FEATURE = "moldau.chunk.version"
"""The feature of partition chunks (KIP-1114)."""
METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION_OF_DIRECTORIES = 17
"""3.7-IV2, the first metadata version with log directories in its records (KIP-858)."""
ELIGIBLE_LEADER_REPLICAS_FEATURE = "eligible.leader.replicas.version"
"""The feature of eligible leader replicas (KIP-966)."""
TRANSACTION_VERSION_FEATURE = "transaction.version"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The last record that an image contains."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """All metadata at one offset. Two images are equal when their metadata are equal, even if their offsets
    differ.

    Security entries are stored as records. No decision uses them yet, but snapshots must contain them.
    """

    topics: TopicsImage = field(default_factory=TopicsImage)
    brokers: PersistentMap[int, BrokerRegistration] = field(default_factory=PersistentMap)
    controllers: PersistentMap[int, ControllerRegistration] = field(default_factory=PersistentMap)
    configs: PersistentMap[ConfigResource, Mapping[str, str]] = field(default_factory=PersistentMap)
    features: PersistentMap[str, FeatureLevel] = field(default_factory=PersistentMap)
    next_producer_id: int = 0
    client_quotas: PersistentMap[str, tuple[QuotaEntity, Mapping[str, float]]] = field(
        default_factory=PersistentMap
    )
    acls: PersistentMap[int, AccessControlEntryRecord] = field(default_factory=PersistentMap)
    scram_credentials: PersistentMap[tuple[int, str], UserScramCredentialRecord] = field(
        default_factory=PersistentMap
    )
    delegation_tokens: PersistentMap[str, DelegationTokenRecord] = field(default_factory=PersistentMap)
    own_parts: Mapping[str, PersistentMap[Any, Any]] = field(default_factory=dict)
    """The parts of the image that Kafka does not have, by name. Empty parts are left out. ``OwnPart`` reads
    the parts with their types."""
    provenance: Provenance = field(default_factory=Provenance, compare=False)

    @property
    def metadata_version(self) -> int:
        """The finalized level of ``metadata.version``; 0 before the cluster's first records are in the
        log."""
        return self.features.get(METADATA_VERSION_FEATURE, FeatureLevel(0))

    def config(self, resource_type: ResourceType, name: str) -> Mapping[str, str]:
        """Return the configs that are set on a resource; empty when no config is set. The result must not be
        modified."""
        return self.configs.get((resource_type, name), _NO_CONFIG)

    def active_brokers(self) -> Iterator[BrokerRegistration]:
        """Return the brokers that are not fenced and not shutting down, by id."""
        return (broker for broker in self.brokers.values() if broker.is_active)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic with this id."""
        topic = self.topics.get_by_id(topic_id)
        return None if topic is None else topic.name


_NO_CONFIG: Mapping[str, str] = {}

EMPTY_IMAGE = MetadataImage()


def quota_key(entity: QuotaEntity) -> str:
    """A key that sorts entities. A key is needed because ``None`` (the default entity) cannot be compared
    with names."""
    return "\x00".join(f"{kind}\x01{'d' if name is None else 'n' + name}" for kind, name in entity)
