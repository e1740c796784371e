"""Decisions about partitions: additions, placement, in-sync sets, elections and reassignments."""
