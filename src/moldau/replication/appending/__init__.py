"""Appends in progress: shared writes, shared syncs, and waiting producers."""
