"""Reads from the remote tier."""
