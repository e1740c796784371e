"""Loads of the benchmarks and their clients. Each load runs in its own process."""
