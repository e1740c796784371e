"""Guards. They prevent that a damaged log is treated as an empty log."""
