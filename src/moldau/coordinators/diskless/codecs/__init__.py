"""The encoding of records and calls of diskless coordinators: columns of small integers. Pure."""
