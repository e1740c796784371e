"""Formats folders, and reads to which cluster and node a folder belongs."""
