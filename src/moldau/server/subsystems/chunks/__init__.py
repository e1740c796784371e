"""Partition chunks in a broker (KIP-1114)."""
