"""Counts group events since the node started, for its metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class GroupTally:
    """Counts over all shards of a node. As in Kafka, a record is counted even when its append fails later."""

    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    """Offsets deleted by OffsetDelete; offsets deleted with their group or topic are not counted."""
    completed_rebalances: int = 0
