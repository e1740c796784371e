"""Committed offsets: requests, decisions and the table that holds them. Pure."""
