"""Searches of a partition by offset and by timestamp."""
