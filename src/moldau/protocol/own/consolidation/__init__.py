"""Messages with which an engine outside the broker takes part in consolidation. There is a module for each
API."""
