"""The rights that Kafka's APIs need: operations on types of resources (KIP-11 and later, and the table in
Kafka's documentation on security).
"""

from typing import Final, TypeAlias

from moldau.network.authorization import AclOperation as Do
from moldau.network.authorization import AclResourceType as On
from moldau.protocol.api import ApiKey

Rights: TypeAlias = frozenset[tuple[Do, On]]

READ_GROUP, DESCRIBE_GROUP, DELETE_GROUP = ((do, On.GROUP) for do in (Do.READ, Do.DESCRIBE, Do.DELETE))
READ_TOPIC, WRITE_TOPIC, DESCRIBE_TOPIC = ((do, On.TOPIC) for do in (Do.READ, Do.WRITE, Do.DESCRIBE))
CREATE_TOPIC, DELETE_TOPIC, ALTER_TOPIC = ((do, On.TOPIC) for do in (Do.CREATE, Do.DELETE, Do.ALTER))
ALTER, DESCRIBE, CREATE = ((do, On.CLUSTER) for do in (Do.ALTER, Do.DESCRIBE, Do.CREATE))
CLUSTER_ACTION, IDEMPOTENT_WRITE = ((do, On.CLUSTER) for do in (Do.CLUSTER_ACTION, Do.IDEMPOTENT_WRITE))
WRITE_TRANSACTIONAL_ID, DESCRIBE_TRANSACTIONAL_ID = (
    (do, On.TRANSACTIONAL_ID) for do in (Do.WRITE, Do.DESCRIBE)
)
DESCRIBE_CONFIGS = {(Do.DESCRIBE_CONFIGS, on) for on in (On.CLUSTER, On.TOPIC, On.GROUP)}
ALTER_CONFIGS = {(Do.ALTER_CONFIGS, on) for on in (On.CLUSTER, On.TOPIC, On.GROUP)}

RIGHTS: Final[dict[ApiKey, Rights]] = {
    key: frozenset(rights)
    for key, rights in {
        ApiKey.PRODUCE: {WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE},
        ApiKey.FETCH: {READ_TOPIC, CLUSTER_ACTION},
        ApiKey.LIST_OFFSETS: {DESCRIBE_TOPIC},
        ApiKey.METADATA: {DESCRIBE_TOPIC, CREATE_TOPIC, CREATE},
        ApiKey.OFFSET_COMMIT: {READ_GROUP, READ_TOPIC},
        ApiKey.OFFSET_FETCH: {DESCRIBE_GROUP, DESCRIBE_TOPIC},
        ApiKey.FIND_COORDINATOR: {DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID},
        ApiKey.JOIN_GROUP: {READ_GROUP},
        ApiKey.HEARTBEAT: {READ_GROUP},
        ApiKey.LEAVE_GROUP: {READ_GROUP},
        ApiKey.SYNC_GROUP: {READ_GROUP},
        ApiKey.DESCRIBE_GROUPS: {DESCRIBE_GROUP},
        ApiKey.LIST_GROUPS: {DESCRIBE_GROUP, DESCRIBE},
        ApiKey.API_VERSIONS: set(),
        ApiKey.CREATE_TOPICS: {CREATE, CREATE_TOPIC},
        ApiKey.DELETE_TOPICS: {DELETE_TOPIC, DESCRIBE_TOPIC},
        ApiKey.DELETE_RECORDS: {DELETE_TOPIC},
        ApiKey.INIT_PRODUCER_ID: {WRITE_TRANSACTIONAL_ID, IDEMPOTENT_WRITE},
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {DESCRIBE_TOPIC, CLUSTER_ACTION},
        ApiKey.ADD_PARTITIONS_TO_TXN: {WRITE_TRANSACTIONAL_ID, WRITE_TOPIC, CLUSTER_ACTION},
        ApiKey.ADD_OFFSETS_TO_TXN: {WRITE_TRANSACTIONAL_ID, READ_GROUP},
        ApiKey.END_TXN: {WRITE_TRANSACTIONAL_ID},
        ApiKey.WRITE_TXN_MARKERS: {ALTER, CLUSTER_ACTION},
        ApiKey.TXN_OFFSET_COMMIT: {WRITE_TRANSACTIONAL_ID, READ_GROUP, READ_TOPIC},
        ApiKey.DESCRIBE_CONFIGS: DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS: ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ALTER_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS: {ALTER},
        ApiKey.DESCRIBE_LOG_DIRS: {DESCRIBE},
        ApiKey.CREATE_PARTITIONS: {ALTER_TOPIC},
        ApiKey.DELETE_GROUPS: {DELETE_GROUP},
        ApiKey.ELECT_LEADERS: {ALTER},
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {ALTER},
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {DESCRIBE},
        ApiKey.OFFSET_DELETE: {DELETE_GROUP, READ_TOPIC},
        ApiKey.DESCRIBE_QUORUM: {DESCRIBE},
        ApiKey.UPDATE_FEATURES: {ALTER},
        ApiKey.DESCRIBE_CLUSTER: {DESCRIBE},
        ApiKey.DESCRIBE_PRODUCERS: {READ_TOPIC},
        ApiKey.UNREGISTER_BROKER: {ALTER},
        ApiKey.DESCRIBE_TRANSACTIONS: {DESCRIBE_TRANSACTIONAL_ID, DESCRIBE_TOPIC},
        ApiKey.LIST_TRANSACTIONS: {DESCRIBE_TRANSACTIONAL_ID},
        ApiKey.LIST_CONFIG_RESOURCES: {(Do.DESCRIBE_CONFIGS, On.CLUSTER)},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {DESCRIBE_TOPIC},
        ApiKey.ADD_RAFT_VOTER: {ALTER},
        ApiKey.REMOVE_RAFT_VOTER: {ALTER},
    }.items()
}
"""The rights of each API that a broker serves. The set is empty for an API that needs no right."""

UNCHECKED: Final = {
    ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS,
    ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_FEATURES, ApiKey.DESCRIBE_PRODUCERS, ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER,
}  # fmt: skip
"""APIs whose handlers do not check rights yet, because the only authorizer allows everything. When a handler
begins to check rights, remove its API from this set. Do not add new APIs."""

CHECKED_IF_ANY: Final = {ApiKey.LIST_TRANSACTIONS}
"""APIs whose handlers check a right for each existing resource. If no resource exists, they check no right.
"""
