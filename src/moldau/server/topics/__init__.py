"""The topics and partitions that a broker serves, and their creation."""
