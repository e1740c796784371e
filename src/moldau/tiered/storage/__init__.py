"""The storage of remote segments: their objects, and the layout of the objects."""
