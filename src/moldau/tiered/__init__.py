"""Tiered storage (KIP-405): old segments of a partition are in an object store, and brokers read them from
there for clients."""
