"""The raft core of KRaft: events in, effects out, no IO. Pure."""
