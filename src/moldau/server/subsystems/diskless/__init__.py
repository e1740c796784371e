"""Diskless topics on a broker."""
