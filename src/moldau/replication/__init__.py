"""Partitions as requests see them, and the classic kind, which keeps its data on the brokers' disks."""
