"""The rights that own APIs require."""

import enum


class Right(enum.Enum):
    """The right that a call needs. CLUSTER_ACTION on the cluster is always sufficient."""

    CLUSTER_ACTION = "cluster-action"
    """For calls that change something, and for those that show all topics."""
    READ_TOPIC = "read-topic"
    """READ on each topic that the call names."""
    NOTHING = "nothing"
    """For calls that a client makes before any other."""
