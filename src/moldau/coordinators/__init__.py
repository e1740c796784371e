"""Coordinators: state machines that restore their state from the log of a partition.

A *shard* is the pure state of one partition (``groups/``, ``diskless/``). The *runtime* calls an operation
of the shard, appends the records that it returns, replays them into the shard, and answers once the log has
committed them. ``host.py`` defines that order, which is the contract.
"""
