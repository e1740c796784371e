"""Tiered storage (KIP-405): old segments of a partition are in an object store, and clients' reads of them
use that store."""
