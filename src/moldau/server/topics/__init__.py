"""The topics and partitions that a broker serves, and how they come into being."""
