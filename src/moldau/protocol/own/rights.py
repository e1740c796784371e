"""The rights that our own calls ask for."""

import enum


class Right(enum.Enum):
    """The right that a call needs. CLUSTER_ACTION on the cluster is always sufficient."""

    CLUSTER_ACTION = "cluster-action"
    """For calls that change or commit something, and for those that show all topics."""
    READ_TOPIC = "read-topic"
    """READ on each topic that the call names."""
    NOTHING = "nothing"
    """For what a caller has to know before any other call."""
