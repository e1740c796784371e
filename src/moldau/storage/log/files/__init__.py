"""Operations on the files of a log that wait for the disk: flushes, deletions and truncations."""
