"""Guards that prevent a damaged log from being treated as an empty one."""
