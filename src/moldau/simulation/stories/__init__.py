"""Stories of one node, by subject."""
