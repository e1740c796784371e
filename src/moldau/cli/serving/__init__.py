"""The commands that run nodes."""
