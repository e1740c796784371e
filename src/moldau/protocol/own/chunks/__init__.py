"""Messages of the calls about partition chunks (KIP-1114), in a module for each API."""
