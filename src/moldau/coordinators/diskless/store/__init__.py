"""The materialised state of a diskless coordinator: SQLite, and snapshots of it."""
