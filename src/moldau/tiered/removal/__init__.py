"""Removal from the remote tier: by retention, after the deletion of a topic, or as orphans."""
