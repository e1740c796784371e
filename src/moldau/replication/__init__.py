"""What a request sees of a partition, and the classic kind that keeps its data on the brokers' disks."""
