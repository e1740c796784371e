"""Converts record values to bytes, or to columns if they are JSON or Avro. Also changes these columns when
the values change."""
