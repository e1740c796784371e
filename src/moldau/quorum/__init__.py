"""The KRaft quorum: a pure Raft core, and the driver that connects it with a log, a disk and peers.

Start reading at ``raft.py`` (the core), ``transitions.py`` (its transitions) and ``effects.py`` (the driver's
contract).
"""
