"""Partition chunks on a broker (KIP-1114): the end of an active chunk, and reads of inactive chunks."""
