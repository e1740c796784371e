"""Reads of the committed state of a diskless coordinator. Some calls wait until the state changes."""
