"""Parts of scenarios with several nodes: programs on the hosts of a world, and the checkers that compare the
nodes. The scenarios are in ``stories/``."""
