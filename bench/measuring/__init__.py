"""Runs measurements: their sizes, the resources that processes use, and the reports."""
