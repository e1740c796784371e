"""The interface of partitions for request handlers, and the classic kind of partition, which stores its data
on the brokers' disks."""
