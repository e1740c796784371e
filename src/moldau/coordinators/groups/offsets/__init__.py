"""Committed offsets: requests, decisions and the table of the offsets. Pure."""
