"""Loads of the benchmarks, each in a process of its own, and the clients that produce them."""
