"""Guards that keep a damaged log from being treated as an empty one."""
