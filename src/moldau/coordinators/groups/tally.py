"""Counts of group events since the node started, for its meters."""

from dataclasses import dataclass


@dataclass(slots=True)
class GroupTally:
    """Counts over all shards of a node. Records whose append fails afterwards stay counted, as in Kafka."""

    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    """Offsets deleted by OffsetDelete; offsets deleted with their group or topic are not counted."""
    completed_rebalances: int = 0
