"""A node's meters, and the pages ``/metrics`` and ``/health``."""
