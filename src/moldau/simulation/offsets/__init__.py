"""Committed offsets of consumer groups, with kills and losses of power."""
