"""Scenarios with several nodes: programs on the hosts of a world, and the checkers that compare the nodes."""
