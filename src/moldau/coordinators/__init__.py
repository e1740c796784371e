"""Coordinators: state machines whose memory is a partition's log.

A *shard* is the pure state of one partition (``groups/``; transactions and diskless metadata come
beside it). The *runtime* lets it decide, appends what it decided, replays that into it and answers
once the log has committed it. See ``runtime.py`` for the order, which is the contract.
"""
