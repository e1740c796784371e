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


class ApiKey(enum.IntEnum):
    """Kafka's API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Scope(enum.Flag):
    """The listeners on which an API is served."""

    BROKER = enum.auto()
    """Brokers' listeners, for clients."""
    CONTROLLER = enum.auto()
    """Controllers' listeners, for brokers, other controllers and admin clients."""
    INTERNAL = enum.auto()
    """Connections between nodes of the cluster. These APIs are never advertised on a client listener."""


# The served ranges are the released versions of Kafka 4.2/4.3. kio supports some versions that are unstable
# in Kafka. They are left out (InitProducerId 6, BrokerHeartbeat 2).
_RANGES = """
0:3-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1
18:0-4 19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-5 29:1-3 30:1-3 31:1-3
32:1-4 33:0-2 34:1-2 35:1-5 36:0-2 37:0-3 38:1-3 39:1-2 40:1-2 41:1-3 42:0-2 43:0-2 44:0-1 45:0-1
46:0 47:0 48:0-1 49:0-1 50:0 51:0 52:0-2 53:0-1 54:0-1 55:0-2 56:2-3 57:0-2 58:0 59:0-1 60:0-2 61:0
62:0-4 63:0-1 64:0 65:0 66:0-2 67:0 68:0-1 69:0-1 70:0 71:0 72:0 73:0 74:0-1 75:0 76:1 77:1 78:1-2
79:1-2 80:0-1 81:0 82:0 83:0 84:0 85:0-1 86:0 87:0-1 88:0 89:0 90:0-1 91:0 92:0
"""


def _read_ranges() -> dict[ApiKey, VersionRange]:
    pairs = (entry.split(":") for entry in _RANGES.split())
    return {ApiKey(int(key)): parse_versions(versions) for key, versions in pairs}


SUPPORTED: Final[Mapping[ApiKey, VersionRange]] = MappingProxyType(_read_ranges())
"""The versions of each API that are decoded and answered. The handlers choose the versions to advertise."""

ADVERTISED: Final[Mapping[ApiKey, VersionRange]] = MappingProxyType(
    # Old librdkafka checks for Produce version 0 and stops if this version is missing. For this reason, Kafka
    # has advertised version 0 since KIP-896.
    {**SUPPORTED, ApiKey.PRODUCE: VersionRange(0, SUPPORTED[ApiKey.PRODUCE].max)}
)
"""The versions in ApiVersions responses: ``SUPPORTED``, except that Produce begins at 0."""

_CONTROLLER_ONLY = (52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82)
_ON_BOTH = (
    *(1, 17, 18, 19, 20, 29, 30, 31, 32, 33, 36, 37, 38, 39, 40, 41, 43, 44, 45, 46, 49, 50, 51, 55, 57, 60),
    *(64, 80, 81),
)


def _read_scopes() -> dict[int, Scope]:
    table: dict[int, Scope] = {int(key): Scope.BROKER for key in ApiKey}
    table.update(dict.fromkeys(_ON_BOTH, Scope.BROKER | Scope.CONTROLLER))
    table.update(dict.fromkeys(_CONTROLLER_ONLY, Scope.CONTROLLER))
    return table


_SCOPES = _read_scopes()


_BY_NUMBER: dict[int, VersionRange] = dict(SUPPORTED.items())


def scopes(api_key: int) -> Scope:
    """The listeners on which an API is served. Moldau's own APIs are internal, and an unknown key counts as
    internal, too."""
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
    """The version of a request's header: 1, or 2 (with tagged fields)."""
    return 2 if version >= _FLEXIBLE_SINCE[api_key] else 1


def response_header_version(api_key: int, version: int) -> int:
    """The version of a response's header: 0, or 1 (with tagged fields). For ApiVersions it is always 0,
    because a client reads this response before it knows the versions."""
    return 1 if version >= _FLEXIBLE_SINCE[api_key] and api_key != API_VERSIONS_KEY else 0
