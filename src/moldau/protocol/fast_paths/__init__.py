"""Produce and Fetch without message objects, because brokers handle these requests most often. Pure."""
