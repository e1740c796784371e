"""Simulated clusters with partition chunks (KIP-1114)."""
