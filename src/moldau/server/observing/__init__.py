"""A node's meters, and ``/metrics`` and ``/health``."""
