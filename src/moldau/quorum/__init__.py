"""The KRaft quorum: a pure raft core, and the driver that connects it with a log, a disk and peers.

Start at ``raft.py`` (the core), ``transitions.py`` (its moves) and ``effects.py`` (the driver's contract).
"""
