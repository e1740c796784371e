"""Removal from the remote tier: by retention, with a topic, or of what nothing knows."""
