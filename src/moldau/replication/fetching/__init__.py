"""The follower's side of replication: fetch sessions, and the tasks that copy logs."""
