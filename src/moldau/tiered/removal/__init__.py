"""What leaves the remote tier: by retention, with its topic, or because nothing knows it."""
