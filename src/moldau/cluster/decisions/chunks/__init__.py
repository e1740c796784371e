"""Decisions about partition chunks (KIP-1114): creation, moves, reports of brokers, and removal."""
