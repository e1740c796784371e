"""The Raft core of KRaft: it accepts events, returns effects, and does no I/O. Pure."""
