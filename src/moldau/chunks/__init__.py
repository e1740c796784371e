"""Partition chunks on a broker (KIP-1114): the code that ends an active chunk, and the code that reads
inactive chunks.
"""
