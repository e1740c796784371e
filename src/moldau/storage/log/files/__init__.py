"""Operations on a log's files that wait for the disk: flushes, deletions, truncations."""
