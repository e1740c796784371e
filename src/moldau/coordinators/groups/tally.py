"""Counts events of groups since the node started, for the node's metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class GroupTally:
    """Counts over all shards of a node. As in Kafka, an event is counted even if the append of its record
    fails later."""

    offset_commits: int = 0
    offset_expirations: int = 0
    offset_deletions: int = 0
    """Number of offsets deleted by OffsetDelete. Offsets that are deleted with their group or topic are not
    counted."""
    completed_rebalances: int = 0
