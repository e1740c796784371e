"""Conversion of record values to bytes or to columns from JSON or Avro, and the evolution of these
columns.
"""
