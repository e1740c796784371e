"""The immutable metadata image, and how records change it. Pure."""
