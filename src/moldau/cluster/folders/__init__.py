"""Formatting folders, and identifying the cluster and the node of a folder."""
