"""Appends on their way: shared writes, shared syncs, and who waits for them."""
