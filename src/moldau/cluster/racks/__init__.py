"""Chooses the broker of a rack that serves a diskless partition or an object. Pure."""
