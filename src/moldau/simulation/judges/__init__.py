"""Judges of histories and of what a node leaves behind."""
