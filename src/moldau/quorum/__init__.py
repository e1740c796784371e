"""The KRaft quorum: a pure Raft core, and the driver that connects the core with a log, a disk and peers.

Start reading at ``raft.py`` (the core), ``transitions.py`` (the transitions between roles) and ``effects.py``
(the driver's contract).
"""
