"""A node's replica of the cluster metadata."""
