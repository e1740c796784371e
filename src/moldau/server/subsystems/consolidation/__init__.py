"""Diskless topics whose records move from the WAL to the remote tier."""
