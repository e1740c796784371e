"""Files of a stopped node that are damaged before it starts again."""
