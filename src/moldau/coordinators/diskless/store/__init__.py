"""The state of a diskless coordinator as SQLite tables, and snapshots of the tables."""
