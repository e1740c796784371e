"""Chooses, for each rack, the broker that serves a diskless partition or an object of the store. Pure."""
