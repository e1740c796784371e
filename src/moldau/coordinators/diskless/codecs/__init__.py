"""How the records and calls of diskless coordinators lie in bytes: columns of small integers."""
