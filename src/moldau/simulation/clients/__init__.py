"""Clients of simulated nodes."""
