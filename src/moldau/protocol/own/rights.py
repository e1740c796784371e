"""The rights that Moldau's own APIs require."""

import enum


class Right(enum.Enum):
    """The right that a call needs. CLUSTER_ACTION on the cluster is always sufficient."""

    CLUSTER_ACTION = "cluster-action"
    """The right for calls that change something, and for calls that return all topics."""
    READ_TOPIC = "read-topic"
    """The right READ on each topic that the call names."""
    NOTHING = "nothing"
    """No right: for calls that a client makes before any other call."""
