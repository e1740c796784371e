"""Formats folders, and identifies the cluster and the node of a folder."""
