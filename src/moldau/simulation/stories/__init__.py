"""Scenarios of a single node, by subject."""
