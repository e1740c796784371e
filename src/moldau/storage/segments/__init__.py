"""Segments of a log: the files with their indexes, how they are opened, scanned and exchanged."""
