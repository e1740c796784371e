"""Background tasks of the remote tier, partition by partition."""
