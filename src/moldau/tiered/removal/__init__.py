"""Removal from the remote tier: by retention, with a topic, or of orphans."""
