"""The rights that Moldau's own APIs require."""

import enum
from typing import Final


class Right(enum.Enum):
    """The right that a call needs. The right CLUSTER_ACTION on the cluster is sufficient for every call."""

    CLUSTER_ACTION = "cluster-action"
    """The right for calls that change something, and for calls that return all topics."""
    ALTER_CLUSTER = "alter-cluster"
    """The right ALTER on the cluster, for requests of tools that change the cluster."""
    READ_TOPIC = "read-topic"
    """The right READ on each topic that the call names."""
    NOTHING = "nothing"
    """No right is needed. A client makes such a call before any other call."""


CLUSTER_RIGHTS: Final = frozenset({Right.CLUSTER_ACTION, Right.ALTER_CLUSTER})
"""Rights that can be checked without the topics of a request."""
