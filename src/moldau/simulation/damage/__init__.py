"""Damages the files of a stopped node before it starts again."""
