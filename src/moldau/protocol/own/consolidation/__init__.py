"""Messages by which an engine outside the broker takes part in consolidation, one module per API."""
