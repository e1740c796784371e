"""The kinds of coordinators of a broker: one module for each, and the registry that joins them.

To add a kind, write its shard and service in ``moldau.coordinators`` and its entry here; a subsystem
contributes the entry. No other code depends on the kinds.
"""
