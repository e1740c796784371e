"""Groups of the classic protocol: members, rebalances, assignments. Pure."""
