"""From a range of offsets to an Arrow table: lookup of batches, reading of objects, decoding of records."""
