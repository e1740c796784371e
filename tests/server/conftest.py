"""The helpers in this folder (requests over the wire) can be imported by tests in its subfolders."""
