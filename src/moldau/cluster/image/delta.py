"""Replays metadata records, and makes a new image from an image. The controller, the brokers and the snapshot
reader use this module."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.image import (
    CHUNK_FEATURE,
    EMPTY_IMAGE,
    ConfigResource,
    FeatureLevel,
    MetadataImage,
    Provenance,
    QuotaEntity,
    ResourceType,
    quota_key,
)
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import (
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    SupportedFeature,
)
from moldau.cluster.image.topics_delta import TopicsDelta
from moldau.protocol.records import metadata as r

K = TypeVar("K")
V = TypeVar("V")

FENCE, UNFENCE = 1, -1
ENTER_CONTROLLED_SHUTDOWN = 1


class Changes(Generic[K, V]):
    """Entries that were added to or removed from one persistent map. The value ``None`` means that the entry
    was removed."""

    __slots__ = ("_base", "entries")

    def __init__(self, base: PersistentMap[K, V]) -> None:
        self._base = base
        self.entries: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        return self.entries[key] if key in self.entries else self._base.get(key)

    def put(self, key: K, value: V) -> None:
        self.entries[key] = value

    def remove(self, key: K) -> None:
        self.entries[key] = None

    def move_to(self, target: PersistentMap[K, V]) -> None:
        """Set these changes to the difference between the original map and ``target``."""
        self.entries = {key: None for key in self._base if key not in target}
        for key, value in target.items():
            if self._base.get(key) != value:
                self.entries[key] = value

    def apply(self) -> PersistentMap[K, V]:
        if not self.entries:
            return self._base
        return self._base.updated(
            {key: value for key, value in self.entries.items() if value is not None},
            [key for key, value in self.entries.items() if value is None],
        )


class MetadataDelta:
    """Changes since ``image``. Call :meth:`replay` for each record in order, then :meth:`apply`.

    Subscribers read ``topics.changed``, ``topics.removed``, ``brokers.entries`` and so on.
    """

    def __init__(self, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.image = image
        self.topics = TopicsDelta(image.topics)
        self.brokers = Changes(image.brokers)
        self.controllers = Changes(image.controllers)
        self.configs: Changes[ConfigResource, Mapping[str, str]] = Changes(image.configs)
        self.features = Changes(image.features)
        self.client_quotas: Changes[str, tuple[QuotaEntity, Mapping[str, float]]] = Changes(
            image.client_quotas
        )
        self.acls = Changes(image.acls)
        self.scram_credentials = Changes(image.scram_credentials)
        self.delegation_tokens = Changes(image.delegation_tokens)
        self.next_producer_id = image.next_producer_id

    def replay(self, record: object) -> None:
        """Apply one record. Raises :class:`MetadataError` when the record contradicts the image or is
        unknown."""
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise MetadataError(f"metadata record {type(record).__name__} is not known to this version")
        handler(self, record)

    def replay_all(self, records: Iterable[object]) -> "MetadataDelta":
        """Apply records in order; returns this object."""
        for record in records:
            self.replay(record)
        return self

    def apply(self, provenance: Provenance | None = None) -> MetadataImage:
        """The image with all changes applied."""
        return replace(
            self.image,
            topics=self.topics.apply(),
            brokers=self.brokers.apply(),
            controllers=self.controllers.apply(),
            configs=self.configs.apply(),
            features=self.features.apply(),
            next_producer_id=self.next_producer_id,
            client_quotas=self.client_quotas.apply(),
            acls=self.acls.apply(),
            scram_credentials=self.scram_credentials.apply(),
            delegation_tokens=self.delegation_tokens.apply(),
            provenance=provenance or self.image.provenance,
        )

    def _remove_topic(self, record: r.RemoveTopicRecord) -> None:
        name = self.topics.name_of(record.topic_id)
        self.topics.replay_remove_topic(record)
        if self.configs.get((ResourceType.TOPIC, name)) is not None:
            self.configs.remove((ResourceType.TOPIC, name))

    def _config(self, record: r.ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        values = dict(self.configs.get(resource) or {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self.configs.put(resource, values)
        else:
            self.configs.remove(resource)

    def _register_broker(self, record: r.RegisterBrokerRecord) -> None:
        self.brokers.put(
            record.broker_id,
            BrokerRegistration(
                broker_id=record.broker_id,
                epoch=record.broker_epoch,
                incarnation_id=record.incarnation_id,
                endpoints=_endpoints(record.end_points),
                features=_features(record.features),
                rack=record.rack,
                fenced=record.fenced,
                in_controlled_shutdown=record.in_controlled_shutdown,
                log_dirs=tuple(sorted(record.log_dirs)),
                cordoned_log_dirs=tuple(sorted(record.cordoned_log_dirs or ())),
                is_migrating_zk_broker=record.is_migrating_zk_broker,
            ),
        )

    def _unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        self.brokers.remove(record.broker_id)

    def _change_broker(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = replace(broker, fenced=record.fenced == FENCE)
        if record.in_controlled_shutdown:
            broker = replace(
                broker, in_controlled_shutdown=record.in_controlled_shutdown == ENTER_CONTROLLED_SHUTDOWN
            )
        if record.log_dirs:
            broker = replace(broker, log_dirs=tuple(sorted(record.log_dirs)))
        if record.cordoned_log_dirs is not None:
            broker = replace(broker, cordoned_log_dirs=tuple(sorted(record.cordoned_log_dirs)))
        self.brokers.put(record.broker_id, broker)

    def _fence_broker(self, record: r.FenceBrokerRecord) -> None:
        self.brokers.put(record.id, replace(self._broker(record.id, record.epoch), fenced=True))

    def _unfence_broker(self, record: r.UnfenceBrokerRecord) -> None:
        self.brokers.put(record.id, replace(self._broker(record.id, record.epoch), fenced=False))

    def _broker(self, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise MetadataError(f"record of broker {broker_id} epoch {epoch}, which is not registered")
        return broker

    def _register_controller(self, record: r.RegisterControllerRecord) -> None:
        self.controllers.put(
            record.controller_id,
            ControllerRegistration(
                controller_id=record.controller_id,
                incarnation_id=record.incarnation_id,
                zk_migration_ready=record.zk_migration_ready,
                endpoints=_endpoints(record.end_points),
                features=_features(record.features),
            ),
        )

    def _unregister_controller(self, record: r.UnregisterControllerRecord) -> None:
        self.controllers.remove(record.controller_id)

    def _feature(self, record: r.FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self.features.remove(record.name)
            if record.name == CHUNK_FEATURE:
                self.topics.clear_chunk_starts()
        else:
            self.features.put(record.name, FeatureLevel(record.feature_level))

    def _producer_ids(self, record: r.ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _client_quota(self, record: r.ClientQuotaRecord) -> None:
        entity = tuple(
            sorted(((data.entity_type, data.entity_name) for data in record.entity), key=_entity_type)
        )
        key = quota_key(entity)
        entry = self.client_quotas.get(key)
        values = dict(entry[1]) if entry is not None else {}
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self.client_quotas.put(key, (entity, values))
        else:
            self.client_quotas.remove(key)

    def _acl(self, record: r.AccessControlEntryRecord) -> None:
        self.acls.put(record.id.int, record)

    def _remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        self.acls.remove(record.id.int)

    def _scram(self, record: r.UserScramCredentialRecord) -> None:
        self.scram_credentials.put((record.mechanism, record.name), record)

    def _remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        self.scram_credentials.remove((record.mechanism, record.name))

    def _delegation_token(self, record: r.DelegationTokenRecord) -> None:
        self.delegation_tokens.put(record.token_id, record)

    def _remove_delegation_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        self.delegation_tokens.remove(record.token_id)

    def _nothing(self, record: object) -> None:
        """Ignore records without state: no-ops, notes of the ZooKeeper migration, and transaction marks
        (see the publisher).
        """


def _entity_type(pair: tuple[str, str | None]) -> str:
    return pair[0]


def _endpoints(endpoints: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
        for endpoint in endpoints
    )


def _features(features: Iterable[Any]) -> tuple[SupportedFeature, ...]:
    return tuple(
        sorted(
            SupportedFeature(feature.name, feature.min_supported_version, feature.max_supported_version)
            for feature in features
        )
    )


_HANDLERS: dict[type, Callable[[MetadataDelta, Any], None]] = {
    r.TopicRecord: lambda delta, record: delta.topics.replay_topic(record),
    r.RemoveTopicRecord: MetadataDelta._remove_topic,
    r.PartitionRecord: lambda delta, record: delta.topics.replay_partition(record),
    r.PartitionChangeRecord: lambda delta, record: delta.topics.replay_partition_change(record),
    r.ChunkRecord: lambda delta, record: delta.topics.replay_chunk(record),
    r.ChunkChangeRecord: lambda delta, record: delta.topics.replay_chunk_change(record),
    r.ConfigRecord: MetadataDelta._config,
    r.RegisterBrokerRecord: MetadataDelta._register_broker,
    r.UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    r.BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    r.FenceBrokerRecord: MetadataDelta._fence_broker,
    r.UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    r.RegisterControllerRecord: MetadataDelta._register_controller,
    r.UnregisterControllerRecord: MetadataDelta._unregister_controller,
    r.ClearElrRecord: lambda delta, record: delta.topics.replay_clear_elr(record),
    r.FeatureLevelRecord: MetadataDelta._feature,
    r.ProducerIdsRecord: MetadataDelta._producer_ids,
    r.ClientQuotaRecord: MetadataDelta._client_quota,
    r.AccessControlEntryRecord: MetadataDelta._acl,
    r.RemoveAccessControlEntryRecord: MetadataDelta._remove_acl,
    r.UserScramCredentialRecord: MetadataDelta._scram,
    r.RemoveUserScramCredentialRecord: MetadataDelta._remove_scram,
    r.DelegationTokenRecord: MetadataDelta._delegation_token,
    r.RemoveDelegationTokenRecord: MetadataDelta._remove_delegation_token,
    r.NoOpRecord: MetadataDelta._nothing,
    r.ZkMigrationStateRecord: MetadataDelta._nothing,
    r.BeginTransactionRecord: MetadataDelta._nothing,
    r.EndTransactionRecord: MetadataDelta._nothing,
    r.AbortTransactionRecord: MetadataDelta._nothing,
}


def image_of(records: Iterable[object], image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    """The image after the records are applied."""
    return MetadataDelta(image).replay_all(records).apply()


def delta_between(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """The difference between two images. It is needed when the new image was not made record by record."""
    delta = MetadataDelta(before)
    delta.topics.move_to(after.topics)
    delta.brokers.move_to(after.brokers)
    delta.controllers.move_to(after.controllers)
    delta.configs.move_to(after.configs)
    delta.features.move_to(after.features)
    delta.client_quotas.move_to(after.client_quotas)
    delta.acls.move_to(after.acls)
    delta.scram_credentials.move_to(after.scram_credentials)
    delta.delegation_tokens.move_to(after.delegation_tokens)
    delta.next_producer_id = after.next_producer_id
    return delta
