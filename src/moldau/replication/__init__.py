"""The interface of partitions for request handlers, and the classic kind of partition. A classic partition
stores its data on the brokers' disks."""
