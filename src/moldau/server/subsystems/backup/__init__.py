"""Saves the cluster's own logs in the object store."""
