"""Scenarios of several nodes: programs on hosts of a world, and the checkers of their agreement."""
