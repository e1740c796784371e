"""Critical logs, whose loss would delete or hide other data. Checks ensure that a damaged log is not treated
as an empty log."""
