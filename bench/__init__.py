"""Benchmarks: a whole broker process, and clients in separate processes. Run ``python -m bench``."""
