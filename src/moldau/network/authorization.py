"""The interface for access control lists. Every handler calls the authorizer before the handler changes data
or returns data."""

import enum
from collections.abc import Mapping
from typing import Final, Protocol

from moldau.network.context import RequestContext

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the cluster as a resource. It is the only resource of the type cluster."""


class AclOperation(enum.Enum):
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


class AclResourceType(enum.Enum):
    """Types of resources of access control."""

    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Authorizer(Protocol):
    """Decides whether a request is allowed."""

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool: ...


class AllowEveryone:
    """The authorizer of a cluster without ACLs. It is Kafka's default when no authorizer is set."""

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return True


_BITS: Final = {
    AclOperation.READ: 3,
    AclOperation.WRITE: 4,
    AclOperation.CREATE: 5,
    AclOperation.DELETE: 6,
    AclOperation.ALTER: 7,
    AclOperation.DESCRIBE: 8,
    AclOperation.CLUSTER_ACTION: 9,
    AclOperation.DESCRIBE_CONFIGS: 10,
    AclOperation.ALTER_CONFIGS: 11,
    AclOperation.IDEMPOTENT_WRITE: 12,
}
_POSSIBLE: Final[Mapping[AclResourceType, frozenset[AclOperation]]] = {
    AclResourceType.TOPIC: frozenset(_BITS) - {AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE},
    AclResourceType.CLUSTER: frozenset(_BITS) - {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE},
}


def authorized_operations(
    authorizer: Authorizer, context: RequestContext, resource: AclResourceType, name: str
) -> int:
    """Return the operations on a topic or the cluster that the principal may use, as a bit field for
    responses (KIP-430)."""
    return sum(
        1 << _BITS[operation]
        for operation in _POSSIBLE[resource]
        if authorizer.allows(context, operation, resource, name)
    )
