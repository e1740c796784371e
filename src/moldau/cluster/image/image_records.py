"""Converts an image to the records of a snapshot. The metadata level determines the versions of the
records."""

from collections.abc import Iterator, Mapping
from itertools import islice

from moldau.cluster.image.chunks import chunk_record
from moldau.cluster.image.image import METADATA_VERSION_FEATURE, ConfigResource, MetadataImage
from moldau.cluster.image.partition import PartitionRegistration
from moldau.cluster.image.persistent_map import PersistentMap
from moldau.cluster.image.registrations import BrokerRegistration, ControllerRegistration
from moldau.cluster.image.topics_image import Topic
from moldau.protocol.records import metadata as r
from moldau.protocol.records.schema import latest_version
from moldau.protocol.schema import Message

_VERSIONS: Mapping[type[Message], tuple[tuple[int, int], ...]] = {
    # Pairs of a level of metadata.version and a record version, the newest pair first. The record version is
    # used from this level on. The values come from Kafka's MetadataVersion.
    r.RegisterBrokerRecord: ((30, 4), (17, 3), (8, 2), (0, 1)),
    r.BrokerRegistrationChangeRecord: ((30, 3), (17, 2), (0, 1)),
    r.PartitionRecord: ((23, 2), (17, 1), (0, 0)),
    r.PartitionChangeRecord: ((23, 2), (17, 1), (0, 0)),
}


def record_version(record: Message, metadata_version: int) -> int:
    """The version in which ``record`` is written. It is the newest version that every reader of this level
    understands."""
    for level, version in _VERSIONS.get(type(record), ()):
        if metadata_version >= level:
            return version
    return latest_version(type(record))


def encode_record(record: Message, metadata_version: int) -> bytes:
    """The encoded value of a record for the metadata log of a cluster at this level."""
    return r.RECORDS.encode(record, record_version(record, metadata_version))


def to_records(image: MetadataImage) -> Iterator[Message]:
    """Records that build ``image`` from an empty image, in the same order on every node.

    ``metadata.version`` comes first, because it determines the versions of the other records.
    """
    yield from records_before_topics(image)
    for topic in image.topics:
        yield from topic_records(topic)
    yield from config_records(image.configs)
    yield from records_after_configs(image)


def records_before_topics(image: MetadataImage) -> Iterator[Message]:
    """The first part of :func:`to_records`: all records except configs and topics."""
    yield from _features(image)
    yield from (_broker(broker) for broker in image.brokers.values())
    yield from (_controller(controller) for controller in image.controllers.values())


def config_records(
    configs: Mapping[ConfigResource, Mapping[str, str]] | PersistentMap[ConfigResource, Mapping[str, str]],
) -> Iterator[Message]:
    """The records of configs, in their order."""
    for (resource_type, resource_name), values in configs.items():
        for key in sorted(values):
            yield r.ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=key, value=values[key]
            )


def records_after_configs(image: MetadataImage) -> Iterator[Message]:
    """The last part of :func:`to_records`."""
    yield from _client_quotas(image)
    if image.next_producer_id > 0:
        yield r.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.acls.values()
    yield from image.scram_credentials.values()
    yield from image.delegation_tokens.values()


def _features(image: MetadataImage) -> Iterator[Message]:
    levels = sorted(image.features.items(), key=lambda item: (item[0] != METADATA_VERSION_FEATURE, item[0]))
    for name, level in levels:
        yield r.FeatureLevelRecord(name=name, feature_level=level)


def _broker(broker: BrokerRegistration) -> Message:
    return r.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        is_migrating_zk_broker=broker.is_migrating_zk_broker,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            r.BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ],
        features=[
            r.BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_level,
                max_supported_version=feature.max_level,
            )
            for feature in broker.features
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs or None,
    )


def _controller(controller: ControllerRegistration) -> Message:
    return r.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=[
            r.ControllerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in controller.endpoints
        ],
        features=[
            r.ControllerFeature(
                name=feature.name,
                min_supported_version=feature.min_level,
                max_supported_version=feature.max_level,
            )
            for feature in controller.features
        ],
    )


def topic_records(topic: Topic, start: int = 0, count: int | None = None) -> Iterator[Message]:
    """The records of a topic. They are the topic's own record, unless ``start`` is greater than 0, and the
    records of ``count`` partitions from ``start`` on."""
    if start == 0:
        yield r.TopicRecord(name=topic.name, topic_id=topic.topic_id, kind=topic.kind)
    some = islice(enumerate(topic.partitions), start, None if count is None else start + count)
    for index, partition in some:
        yield _partition(topic, index, partition)
        for chunk in partition.chunks:
            yield chunk_record(topic.topic_id, index, chunk)


def _partition(topic: Topic, index: int, partition: PartitionRegistration) -> Message:
    return r.PartitionRecord(
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_eligible_leader_replicas or None,
        owner=partition.owner,
        generation_starts=partition.generations.starts,
        start_offset=partition.start_offset,
        start_timestamp=partition.start_timestamp_ms,
    )


def _client_quotas(image: MetadataImage) -> Iterator[Message]:
    for entity, values in image.client_quotas.values():
        for key in sorted(values):
            yield r.ClientQuotaRecord(
                entity=[r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key,
                value=values[key],
                remove=False,
            )
