"""The helpers in this folder (requests over the wire) are importable from the rooms below it."""
