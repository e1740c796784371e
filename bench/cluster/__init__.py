"""Measures a cluster of three controllers and three brokers."""
