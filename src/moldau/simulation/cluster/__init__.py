"""Stories of several nodes: programs on hosts of one world, and the checkers of their agreement."""
