"""Checks of histories and of a node's final state."""
