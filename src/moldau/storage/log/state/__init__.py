"""The state of a log that is not in its segments, and the rules between the parts of this state."""
