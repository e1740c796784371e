"""Answers from the committed state of a diskless coordinator, and the calls that wait until the state
changes."""
