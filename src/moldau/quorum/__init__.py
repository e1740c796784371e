"""The KRaft quorum: a pure Raft core, and the driver that connects the core with a log, a disk and peers.

Start reading at ``core/raft.py`` (the core), ``core/transitions.py`` (the transitions between roles) and
``core/effects.py`` (the driver's contract).
"""
