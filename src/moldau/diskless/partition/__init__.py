"""A diskless partition for request handlers."""
