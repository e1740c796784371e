"""The seam where access control lists come in: every handler asks here before it acts."""

import enum
from collections.abc import Mapping
from typing import Final, Protocol

from moldau.network.context import RequestContext

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type cluster."""


class Operation(enum.Enum):
    """Operations of access control (Kafka's ACL operations)."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"


class ResourceType(enum.Enum):
    """Types of resources of access control."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Authorizer(Protocol):
    """Decides whether a request may do what it asks."""

    def allows(
        self, context: RequestContext, operation: Operation, resource: ResourceType, name: str
    ) -> bool: ...


class AllowEveryone:
    """The authorizer of a cluster without ACLs: Kafka's default when no authorizer is set."""

    def allows(
        self, context: RequestContext, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        return True


_BITS: Final = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
_POSSIBLE: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(_BITS) - {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE},
    ResourceType.CLUSTER: frozenset(_BITS) - {Operation.READ, Operation.WRITE, Operation.DELETE},
}


def authorized_operations(
    authorizer: Authorizer, context: RequestContext, resource: ResourceType, name: str
) -> int:
    """Authorized operations on a topic or the cluster, as the bit field of responses (KIP-430)."""
    return sum(
        1 << _BITS[operation]
        for operation in _POSSIBLE[resource]
        if authorizer.allows(context, operation, resource, name)
    )
