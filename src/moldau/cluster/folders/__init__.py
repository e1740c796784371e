"""Formatting folders, and telling whose they are."""
