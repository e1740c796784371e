"""Messages with which an engine outside the broker takes part in consolidation, in a module for each API."""
