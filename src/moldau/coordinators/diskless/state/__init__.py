"""The state of a diskless coordinator and its decisions. Pure."""
