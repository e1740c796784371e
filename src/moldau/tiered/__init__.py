"""Tiered storage (KIP-405). Old segments of a partition are in an object store. Brokers read these segments
for clients."""
