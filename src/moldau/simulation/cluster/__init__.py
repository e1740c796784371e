"""Stories of several nodes: programs on hosts of one world, and the checkers of what they agree on."""
