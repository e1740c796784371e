"""Logs with snapshots, for the metadata log and for the states of coordinators."""
