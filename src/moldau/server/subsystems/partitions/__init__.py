"""The partitions of a broker: hosting, and the classic kind."""
