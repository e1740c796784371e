"""The partitions of a broker: their hosting, and the classic kind."""
