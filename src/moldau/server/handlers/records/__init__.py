"""Requests of producers, consumers and following brokers: they write, read and search records."""
