"""Converts record values to columns: raw values to one column of bytes, JSON and Avro values to typed
columns. This package also changes these columns when the values change."""
