"""Committed offsets of consumer groups, through kills and losses of power."""
