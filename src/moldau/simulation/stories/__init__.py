"""Scenarios of a single node. Each module has one subject."""
