"""The follower's side: fetch sessions and the tasks that copy."""
