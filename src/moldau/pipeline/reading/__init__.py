"""From a range of offsets to an Arrow table: who knows where batches are, what holds them, what they hold."""
