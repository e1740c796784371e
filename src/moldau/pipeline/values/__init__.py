"""Conversion of record values: bytes, or columns from JSON or Avro; and how columns grow."""
