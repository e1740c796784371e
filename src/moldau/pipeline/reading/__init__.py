"""Reads a range of offsets as an Arrow table: looks up batches, reads objects, decodes records."""
