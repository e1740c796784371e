"""Requests of producers, consumers and following brokers: writing, reading and searching records."""
