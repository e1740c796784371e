"""Diskless topics that leave the WAL for the remote tier."""
