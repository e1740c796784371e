"""Critical logs, whose loss would delete or hide other data. Checks prevent that a damaged log is treated as
an empty log."""
