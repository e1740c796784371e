"""Logs with snapshots: for the quorum's metadata and the states of coordinators."""
