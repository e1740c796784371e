"""Partitions as request handlers see them, and the classic kind of partition, which stores its data on the
brokers' disks."""
