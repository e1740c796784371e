"""Guards that keep a damaged log from being taken for an empty one."""
