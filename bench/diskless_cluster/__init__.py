"""Diskless topics over three brokers in three racks; see ``__main__.py``."""
