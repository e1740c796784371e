"""The table of APIs. It contains the keys, the versions that Moldau serves, the listeners of each API, and
header versions."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from moldau.protocol.messages.index import MODULES as KAFKA_MODULES
from moldau.protocol.own import MODULES as OWN_MODULES
from moldau.protocol.schema import VERSION_MAX, VersionRange, parse_versions

__all__ = [
    "ADVERTISED",
    "OWN_API_KEY_MIN",
    "SUPPORTED",
    "ApiKey",
    "Scope",
    "VersionRange",
    "request_header_version",
    "response_header_version",
    "scopes",
    "supports",
]

OWN_API_KEY_MIN: Final = 11_000
"""The lowest key of Moldau's own APIs (see ``protocol.own``). Kafka's keys are far below it."""


API_VERSIONS_KEY: Final = 18


class Scope(enum.Flag):
    """The listeners on which an API is served."""

    BROKER = enum.auto()
    """The listeners of brokers, which serve clients."""
    CONTROLLER = enum.auto()
    """The listeners of controllers, which serve brokers, other controllers and admin clients."""
    INTERNAL = enum.auto()
    """The API is for connections between nodes of the cluster. It is never advertised on a client
    listener."""
    BOTH = BROKER | CONTROLLER
    """The listeners of brokers and of controllers."""


class ApiKey(enum.IntEnum):
    """Kafka's APIs. Each line has the key and the served versions. It also has the listeners, unless only
    brokers serve the API.

    The served versions are the versions of the releases Kafka 4.2 and 4.3. The table leaves out versions that
    kio supports but that are unstable in Kafka (InitProducerId 6, BrokerHeartbeat 2).
    """

    versions: VersionRange
    scope: Scope

    def __new__(cls, key: int, versions: str = "", scope: Scope = Scope.BROKER) -> "ApiKey":
        row = int.__new__(cls, key)
        row._value_ = key
        row.versions = parse_versions(versions)
        row.scope = scope
        return row

    PRODUCE = 0, "3-13"
    FETCH = 1, "4-18", Scope.BOTH
    LIST_OFFSETS = 2, "1-11"
    METADATA = 3, "0-13"
    OFFSET_COMMIT = 8, "2-10"
    OFFSET_FETCH = 9, "1-10"
    FIND_COORDINATOR = 10, "0-6"
    JOIN_GROUP = 11, "0-9"
    HEARTBEAT = 12, "0-4"
    LEAVE_GROUP = 13, "0-5"
    SYNC_GROUP = 14, "0-5"
    DESCRIBE_GROUPS = 15, "0-6"
    LIST_GROUPS = 16, "0-5"
    SASL_HANDSHAKE = 17, "0-1", Scope.BOTH
    API_VERSIONS = 18, "0-4", Scope.BOTH
    CREATE_TOPICS = 19, "2-7", Scope.BOTH
    DELETE_TOPICS = 20, "1-6", Scope.BOTH
    DELETE_RECORDS = 21, "0-2"
    INIT_PRODUCER_ID = 22, "0-5"
    OFFSET_FOR_LEADER_EPOCH = 23, "2-4"
    ADD_PARTITIONS_TO_TXN = 24, "0-5"
    ADD_OFFSETS_TO_TXN = 25, "0-4"
    END_TXN = 26, "0-5"
    WRITE_TXN_MARKERS = 27, "1-2"
    TXN_OFFSET_COMMIT = 28, "0-5"
    DESCRIBE_ACLS = 29, "1-3", Scope.BOTH
    CREATE_ACLS = 30, "1-3", Scope.BOTH
    DELETE_ACLS = 31, "1-3", Scope.BOTH
    DESCRIBE_CONFIGS = 32, "1-4", Scope.BOTH
    ALTER_CONFIGS = 33, "0-2", Scope.BOTH
    ALTER_REPLICA_LOG_DIRS = 34, "1-2"
    DESCRIBE_LOG_DIRS = 35, "1-5"
    SASL_AUTHENTICATE = 36, "0-2", Scope.BOTH
    CREATE_PARTITIONS = 37, "0-3", Scope.BOTH
    CREATE_DELEGATION_TOKEN = 38, "1-3", Scope.BOTH
    RENEW_DELEGATION_TOKEN = 39, "1-2", Scope.BOTH
    EXPIRE_DELEGATION_TOKEN = 40, "1-2", Scope.BOTH
    DESCRIBE_DELEGATION_TOKEN = 41, "1-3", Scope.BOTH
    DELETE_GROUPS = 42, "0-2"
    ELECT_LEADERS = 43, "0-2", Scope.BOTH
    INCREMENTAL_ALTER_CONFIGS = 44, "0-1", Scope.BOTH
    ALTER_PARTITION_REASSIGNMENTS = 45, "0-1", Scope.BOTH
    LIST_PARTITION_REASSIGNMENTS = 46, "0", Scope.BOTH
    OFFSET_DELETE = 47, "0"
    DESCRIBE_CLIENT_QUOTAS = 48, "0-1"
    ALTER_CLIENT_QUOTAS = 49, "0-1", Scope.BOTH
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, "0", Scope.BOTH
    ALTER_USER_SCRAM_CREDENTIALS = 51, "0", Scope.BOTH
    VOTE = 52, "0-2", Scope.CONTROLLER
    BEGIN_QUORUM_EPOCH = 53, "0-1", Scope.CONTROLLER
    END_QUORUM_EPOCH = 54, "0-1", Scope.CONTROLLER
    DESCRIBE_QUORUM = 55, "0-2", Scope.BOTH
    ALTER_PARTITION = 56, "2-3", Scope.CONTROLLER
    UPDATE_FEATURES = 57, "0-2", Scope.BOTH
    ENVELOPE = 58, "0", Scope.CONTROLLER
    FETCH_SNAPSHOT = 59, "0-1", Scope.CONTROLLER
    DESCRIBE_CLUSTER = 60, "0-2", Scope.BOTH
    DESCRIBE_PRODUCERS = 61, "0"
    BROKER_REGISTRATION = 62, "0-4", Scope.CONTROLLER
    BROKER_HEARTBEAT = 63, "0-1", Scope.CONTROLLER
    UNREGISTER_BROKER = 64, "0", Scope.BOTH
    DESCRIBE_TRANSACTIONS = 65, "0"
    LIST_TRANSACTIONS = 66, "0-2"
    ALLOCATE_PRODUCER_IDS = 67, "0", Scope.CONTROLLER
    CONSUMER_GROUP_HEARTBEAT = 68, "0-1"
    CONSUMER_GROUP_DESCRIBE = 69, "0-1"
    CONTROLLER_REGISTRATION = 70, "0", Scope.CONTROLLER
    GET_TELEMETRY_SUBSCRIPTIONS = 71, "0"
    PUSH_TELEMETRY = 72, "0"
    ASSIGN_REPLICAS_TO_DIRS = 73, "0", Scope.CONTROLLER
    LIST_CONFIG_RESOURCES = 74, "0-1"
    DESCRIBE_TOPIC_PARTITIONS = 75, "0"
    SHARE_GROUP_HEARTBEAT = 76, "1"
    SHARE_GROUP_DESCRIBE = 77, "1"
    SHARE_FETCH = 78, "1-2"
    SHARE_ACKNOWLEDGE = 79, "1-2"
    ADD_RAFT_VOTER = 80, "0-1", Scope.BOTH
    REMOVE_RAFT_VOTER = 81, "0", Scope.BOTH
    UPDATE_RAFT_VOTER = 82, "0", Scope.CONTROLLER
    INITIALIZE_SHARE_GROUP_STATE = 83, "0"
    READ_SHARE_GROUP_STATE = 84, "0"
    WRITE_SHARE_GROUP_STATE = 85, "0-1"
    DELETE_SHARE_GROUP_STATE = 86, "0"
    READ_SHARE_GROUP_STATE_SUMMARY = 87, "0-1"
    STREAMS_GROUP_HEARTBEAT = 88, "0"
    STREAMS_GROUP_DESCRIBE = 89, "0"
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, "0-1"
    ALTER_SHARE_GROUP_OFFSETS = 91, "0"
    DELETE_SHARE_GROUP_OFFSETS = 92, "0"


SUPPORTED: Final[Mapping[ApiKey, VersionRange]] = MappingProxyType({key: key.versions for key in ApiKey})
"""The versions of each API that are decoded and answered. :data:`ADVERTISED` has the versions
that ApiVersions responses list."""

ADVERTISED: Final[Mapping[ApiKey, VersionRange]] = MappingProxyType(
    # Old librdkafka checks for Produce version 0 and stops if this version is missing. For this reason, Kafka
    # has advertised version 0 since KIP-896.
    {**SUPPORTED, ApiKey.PRODUCE: VersionRange(0, SUPPORTED[ApiKey.PRODUCE].max)}
)
"""The versions in ApiVersions responses: ``SUPPORTED``, except that Produce begins at 0."""

_SCOPES: dict[int, Scope] = {key: key.scope for key in ApiKey}
_BY_NUMBER: dict[int, VersionRange] = dict(SUPPORTED.items())


def scopes(api_key: int) -> Scope:
    """Return the listeners on which an API is served. Moldau's own APIs are internal, and unknown keys count
    as internal."""
    return _SCOPES.get(api_key, Scope.INTERNAL)


def supports(api_key: int, version: int) -> bool:
    """Whether a request of this version can be decoded and answered."""
    known = _BY_NUMBER.get(api_key)
    if known is not None:
        return version in known
    own = OWN_MODULES.get(api_key)
    return own is not None and version in parse_versions(own[1])


class _FlexibleSince(dict[int, int]):
    """The first flexible version by API key. Keys of Moldau's own APIs are added at their first use."""

    def __missing__(self, api_key: int) -> int:
        found = KAFKA_MODULES.get(api_key) or OWN_MODULES.get(api_key)
        if found is None or found[2] == "none":
            return VERSION_MAX + 1
        self[api_key] = parse_versions(found[2]).min
        return self[api_key]


_FLEXIBLE_SINCE = _FlexibleSince()


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of a request's header: 1, or 2 (with tagged fields)."""
    return 2 if version >= _FLEXIBLE_SINCE[api_key] else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of a response's header: 0, or 1 (with tagged fields). For ApiVersions it is always
    0, because a client reads this response before it knows the versions."""
    return 1 if version >= _FLEXIBLE_SINCE[api_key] and api_key != API_VERSIONS_KEY else 0
