"""Simulated disks: files, volumes that may lose unsynced writes, and SQLite on such volumes."""
