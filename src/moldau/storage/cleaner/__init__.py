"""The log cleaner: compaction."""
