"""The KRaft quorum: a pure raft core and the driver that gives it a log, a disk and peers.

Start at ``raft.py`` (the core), ``transitions.py`` (its moves) and ``effects.py`` (what a driver owes it).
"""
