"""Background tasks of the remote tier, for each partition."""
