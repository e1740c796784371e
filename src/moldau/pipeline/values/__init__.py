"""Converts record values to bytes, or to columns if they are JSON or Avro. This package also changes these
columns when the values change."""
