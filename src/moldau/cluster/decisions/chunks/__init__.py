"""Decisions about partition chunks (KIP-1114): they begin, move, are reported by their brokers, and end."""
