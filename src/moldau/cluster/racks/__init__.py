"""Racks: which broker of a rack serves a diskless partition or an object. Pure."""
