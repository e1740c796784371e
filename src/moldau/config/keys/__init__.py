"""The tables of keys, by subject."""
