"""Partitions as requests see them, and the classic kind, which stores its data on the brokers' disks."""
