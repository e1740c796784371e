"""What a record's value becomes: bytes, or columns from JSON or Avro; and how columns grow."""
