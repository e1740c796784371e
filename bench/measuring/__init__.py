"""Measurements, with their sizes, the resources of processes, and the reports."""
