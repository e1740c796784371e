"""Benchmarks: a whole broker process under clients in processes of their own. Run ``python -m bench``."""
