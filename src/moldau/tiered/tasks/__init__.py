"""What a broker does with the remote tier in the background, partition by partition."""
