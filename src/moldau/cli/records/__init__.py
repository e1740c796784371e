"""The commands that write and read records."""
