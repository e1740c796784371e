"""Coordinators: state machines that restore their state from the log of a partition.

A *shard* is the pure state of one partition (``groups/``, ``diskless/``). The *runtime* calls an operation of
the shard, appends the records that the operation returns, and replays them into the shard. It sends the
response when the log has committed the records. ``shard_host.py`` defines this order, and all other code
relies on it.
"""
