"""Requests of producers, consumers and followers. They write, read and search records."""
