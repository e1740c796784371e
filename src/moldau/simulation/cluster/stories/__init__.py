"""Stories of several nodes. Each module has the functions that return its scenarios."""
