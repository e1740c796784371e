"""Records of the cluster metadata log (``__cluster_metadata``) and its snapshots, as in Kafka 4.3. There are
also Moldau's own records of partition chunks.

The sources are Kafka's ``metadata/src/main/resources/common/metadata`` and, for the bytes in the tests, the
released 4.2 classes. Every record is flexible. ``encode_record`` writes the newest version by default. A
controller passes the version that its ``metadata.version`` allows.
"""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol.records.schema import FramedRecords
from moldau.protocol.schema import ZERO_UUID, Message, message, wire
from moldau.runtime.buffers import Buffer


@message
class BrokerEndpoint(Message):
    name: str = wire("string", default="")
    host: str = wire("string", default="")
    port: int = wire("uint16", default=0)
    security_protocol: int = wire("int16", default=0)


@message
class BrokerFeature(Message):
    name: str = wire("string", default="")
    min_supported_version: int = wire("int16", default=0)
    max_supported_version: int = wire("int16", default=0)


@message
class RegisterBrokerRecord(Message):
    API_KEY = 0
    VERSIONS = "0-4"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=0)
    is_migrating_zk_broker: bool = wire("bool", "2+", default=False)
    incarnation_id: UUID = wire("uuid", default=ZERO_UUID)
    broker_epoch: int = wire("int64", default=0)
    end_points: Sequence[BrokerEndpoint] = wire([BrokerEndpoint], default=())
    features: Sequence[BrokerFeature] = wire([BrokerFeature], default=())
    rack: str | None = wire("string", default="", nullable="0+")
    fenced: bool = wire("bool", default=True)
    in_controlled_shutdown: bool = wire("bool", "1+", default=False)
    log_dirs: Sequence[UUID] = wire(["uuid"], "3+", default=(), tag=0, tagged="3+")
    cordoned_log_dirs: Sequence[UUID] | None = wire(
        ["uuid"], "4+", default=None, nullable="4+", tag=1, tagged="4+"
    )


@message
class UnregisterBrokerRecord(Message):
    API_KEY = 1
    VERSIONS = "0"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=0)


@message
class TopicRecord(Message):
    API_KEY = 2
    VERSIONS = "0"
    FLEXIBLE = "0+"
    name: str = wire("string", default="")
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    # Moldau's own field: the name of the topic's kind. It is empty for kinds whose name is not stored in
    # records. Kafka's readers skip the tag.
    kind: str = wire("string", default="", tag=11640)


@message
class PartitionRecord(Message):
    API_KEY = 3
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    partition_id: int = wire("int32", default=-1)
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    replicas: Sequence[int] = wire(["int32"], default=())
    isr: Sequence[int] = wire(["int32"], default=())
    removing_replicas: Sequence[int] = wire(["int32"], default=())
    adding_replicas: Sequence[int] = wire(["int32"], default=())
    leader: int = wire("int32", default=-1)
    leader_recovery_state: int = wire("int8", default=0, tag=0)
    leader_epoch: int = wire("int32", default=-1)
    partition_epoch: int = wire("int32", default=-1)
    directories: Sequence[UUID] = wire(["uuid"], "1+", default=())
    eligible_leader_replicas: Sequence[int] | None = wire(
        ["int32"], "2+", default=None, nullable="2+", tag=1, tagged="2+"
    )
    last_known_elr: Sequence[int] | None = wire(
        ["int32"], "2+", default=None, nullable="2+", tag=2, tagged="2+"
    )
    # Moldau's own field: the partition of an internal topic that owns this partition. The field is set only
    # for kinds of topics with owners. Kafka's readers skip the tag.
    owner: int = wire("int32", default=-1, tag=11640)
    # Moldau's own field: the first offset of each generation of the log. The first generation is left out.
    generation_starts: Sequence[int] = wire(["int64"], default=(), tag=11641)
    # Moldau's own fields (KIP-1114): the first offset of the active chunk and its timestamp, if the partition
    # has or had chunks.
    start_offset: int = wire("int64", default=-1, tag=11142)
    start_timestamp: int = wire("int64", default=-1, tag=11143)


@message
class ConfigRecord(Message):
    API_KEY = 4
    VERSIONS = "0"
    FLEXIBLE = "0+"
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    name: str = wire("string", default="")
    value: str | None = wire("string", default="", nullable="0+")


@message
class PartitionChangeRecord(Message):
    API_KEY = 5
    VERSIONS = "0-2"
    FLEXIBLE = "0+"
    partition_id: int = wire("int32", default=-1)
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    isr: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=0)
    leader: int = wire("int32", default=-2, tag=1)
    replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=2)
    removing_replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=3)
    adding_replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=4)
    leader_recovery_state: int = wire("int8", default=-1, tag=5)
    directories: Sequence[UUID] | None = wire(["uuid"], "1+", default=None, nullable="1+", tag=8, tagged="1+")
    eligible_leader_replicas: Sequence[int] | None = wire(
        ["int32"], "2+", default=None, nullable="2+", tag=6, tagged="2+"
    )
    last_known_elr: Sequence[int] | None = wire(
        ["int32"], "2+", default=None, nullable="2+", tag=7, tagged="2+"
    )
    # Moldau's own fields (KIP-1114), with the same meaning as in the partition record. The value -1 means no
    # change.
    start_offset: int = wire("int64", default=-1, tag=11142)
    start_timestamp: int = wire("int64", default=-1, tag=11143)


@message
class FenceBrokerRecord(Message):
    API_KEY = 7
    VERSIONS = "0"
    FLEXIBLE = "0+"
    id: int = wire("int32", default=0)
    epoch: int = wire("int64", default=0)


@message
class UnfenceBrokerRecord(Message):
    API_KEY = 8
    VERSIONS = "0"
    FLEXIBLE = "0+"
    id: int = wire("int32", default=0)
    epoch: int = wire("int64", default=0)


@message
class RemoveTopicRecord(Message):
    API_KEY = 9
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_id: UUID = wire("uuid", default=ZERO_UUID)


@message
class DelegationTokenRecord(Message):
    API_KEY = 10
    VERSIONS = "0"
    FLEXIBLE = "0+"
    owner: str = wire("string", default="")
    requester: str = wire("string", default="")
    renewers: Sequence[str] = wire(["string"], default=())
    issue_timestamp: int = wire("int64", default=0)
    max_timestamp: int = wire("int64", default=0)
    expiration_timestamp: int = wire("int64", default=0)
    token_id: str = wire("string", default="")


@message
class UserScramCredentialRecord(Message):
    API_KEY = 11
    VERSIONS = "0"
    FLEXIBLE = "0+"
    name: str = wire("string", default="")
    mechanism: int = wire("int8", default=0)
    salt: bytes = wire("bytes", default=b"")
    stored_key: bytes = wire("bytes", default=b"")
    server_key: bytes = wire("bytes", default=b"")
    iterations: int = wire("int32", default=0)


@message
class FeatureLevelRecord(Message):
    API_KEY = 12
    VERSIONS = "0"
    FLEXIBLE = "0+"
    name: str = wire("string", default="")
    feature_level: int = wire("int16", default=0)


@message
class EntityData(Message):
    entity_type: str = wire("string", default="")
    entity_name: str | None = wire("string", default="", nullable="0+")


@message
class ClientQuotaRecord(Message):
    API_KEY = 14
    VERSIONS = "0"
    FLEXIBLE = "0+"
    entity: Sequence[EntityData] = wire([EntityData], default=())
    key: str = wire("string", default="")
    value: float = wire("float64", default=0.0)
    remove: bool = wire("bool", default=False)


@message
class ProducerIdsRecord(Message):
    API_KEY = 15
    VERSIONS = "0"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=-1)
    next_producer_id: int = wire("int64", default=0)


@message
class BrokerRegistrationChangeRecord(Message):
    API_KEY = 17
    VERSIONS = "0-3"
    FLEXIBLE = "0+"
    broker_id: int = wire("int32", default=0)
    broker_epoch: int = wire("int64", default=0)
    fenced: int = wire("int8", default=0, tag=0)
    in_controlled_shutdown: int = wire("int8", "1+", default=0, tag=1, tagged="1+")
    log_dirs: Sequence[UUID] = wire(["uuid"], "2+", default=(), tag=2, tagged="2+")
    cordoned_log_dirs: Sequence[UUID] | None = wire(
        ["uuid"], "3+", default=None, nullable="3+", tag=3, tagged="3+"
    )


@message
class AccessControlEntryRecord(Message):
    API_KEY = 18
    VERSIONS = "0"
    FLEXIBLE = "0+"
    id: UUID = wire("uuid", default=ZERO_UUID)
    resource_type: int = wire("int8", default=0)
    resource_name: str = wire("string", default="")
    pattern_type: int = wire("int8", default=0)
    principal: str = wire("string", default="")
    host: str = wire("string", default="")
    operation: int = wire("int8", default=0)
    permission_type: int = wire("int8", default=0)


@message
class RemoveAccessControlEntryRecord(Message):
    API_KEY = 19
    VERSIONS = "0"
    FLEXIBLE = "0+"
    id: UUID = wire("uuid", default=ZERO_UUID)


@message
class NoOpRecord(Message):
    API_KEY = 20
    VERSIONS = "0"
    FLEXIBLE = "0+"


@message
class ZkMigrationStateRecord(Message):
    API_KEY = 21
    VERSIONS = "0"
    FLEXIBLE = "0+"
    zk_migration_state: int = wire("int8", default=0)


@message
class RemoveUserScramCredentialRecord(Message):
    API_KEY = 22
    VERSIONS = "0"
    FLEXIBLE = "0+"
    name: str = wire("string", default="")
    mechanism: int = wire("int8", default=0)


@message
class BeginTransactionRecord(Message):
    API_KEY = 23
    VERSIONS = "0"
    FLEXIBLE = "0+"
    name: str | None = wire("string", default=None, nullable="0+", tag=0)


@message
class EndTransactionRecord(Message):
    API_KEY = 24
    VERSIONS = "0"
    FLEXIBLE = "0+"


@message
class AbortTransactionRecord(Message):
    API_KEY = 25
    VERSIONS = "0"
    FLEXIBLE = "0+"
    reason: str | None = wire("string", default=None, nullable="0+", tag=0)


@message
class RemoveDelegationTokenRecord(Message):
    API_KEY = 26
    VERSIONS = "0"
    FLEXIBLE = "0+"
    token_id: str = wire("string", default="")


@message
class ControllerEndpoint(Message):
    name: str = wire("string", default="")
    host: str = wire("string", default="")
    port: int = wire("uint16", default=0)
    security_protocol: int = wire("int16", default=0)


@message
class ControllerFeature(Message):
    name: str = wire("string", default="")
    min_supported_version: int = wire("int16", default=0)
    max_supported_version: int = wire("int16", default=0)


@message
class RegisterControllerRecord(Message):
    API_KEY = 27
    VERSIONS = "0"
    FLEXIBLE = "0+"
    controller_id: int = wire("int32", default=0)
    incarnation_id: UUID = wire("uuid", default=ZERO_UUID)
    zk_migration_ready: bool = wire("bool", default=False)
    end_points: Sequence[ControllerEndpoint] = wire([ControllerEndpoint], default=())
    features: Sequence[ControllerFeature] = wire([ControllerFeature], default=())


@message
class ClearElrRecord(Message):
    API_KEY = 28
    VERSIONS = "0"
    FLEXIBLE = "0+"
    topic_name: str = wire("string", default="")


@message
class UnregisterControllerRecord(Message):
    API_KEY = 29
    VERSIONS = "0"
    FLEXIBLE = "0+"
    controller_id: int = wire("int32", default=0)


@message
class ChunkRecord(Message):
    """An inactive chunk (KIP-1114). Kafka has no such record, so the number is Moldau's own."""

    API_KEY = 11140
    VERSIONS = "0"
    FLEXIBLE = "0+"
    partition_id: int = wire("int32", default=-1)
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    start_offset: int = wire("int64", default=-1)
    start_timestamp: int = wire("int64", default=-1)
    stop_offset: int = wire("int64", default=-1)
    end_offset: int = wire("int64", default=-1)
    chunk_epoch: int = wire("int32", default=-1)
    replicas: Sequence[int] = wire(["int32"], default=())
    directories: Sequence[UUID] = wire(["uuid"], default=())
    isr: Sequence[int] = wire(["int32"], default=())
    removing_replicas: Sequence[int] = wire(["int32"], default=())
    adding_replicas: Sequence[int] = wire(["int32"], default=())
    # The KIP does not have these fields. They allow lookups by time and retention by size without calls to
    # the chunk's brokers.
    max_timestamp: int = wire("int64", default=-1, tag=0)
    size_bytes: int = wire("int64", default=0, tag=1)


@message
class ChunkChangeRecord(Message):
    """A change of the replicas of an inactive chunk (KIP-1114). Null means no change.

    An empty list of replicas removes the chunk.
    """

    API_KEY = 11141
    VERSIONS = "0"
    FLEXIBLE = "0+"
    partition_id: int = wire("int32", default=-1)
    topic_id: UUID = wire("uuid", default=ZERO_UUID)
    start_offset: int = wire("int64", default=-1)
    chunk_epoch: int = wire("int32", default=-1)
    replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=0)
    directories: Sequence[UUID] | None = wire(["uuid"], default=None, nullable="0+", tag=1)
    isr: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=2)
    removing_replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=3)
    adding_replicas: Sequence[int] | None = wire(["int32"], default=None, nullable="0+", tag=4)


RECORDS = FramedRecords(
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    RegisterControllerRecord,
    ClearElrRecord,
    UnregisterControllerRecord,
    ChunkRecord,
    ChunkChangeRecord,
)
"""All metadata records: Kafka's records, and Moldau's two records of partition chunks."""


def encode_record(record: Message, version: int | None = None) -> bytes:
    """A record's value in the metadata log. It consists of frame version, type and version (varints), and the
    body."""
    return RECORDS.encode(record, version)


def decode_record(value: Buffer) -> Message:
    """Read a record's value. Raises ProtocolError for malformed bytes, and for an unknown type or version."""
    return RECORDS.decode(value)
