"""Messages of the calls about partition chunks (KIP-1114). There is a module for each API."""
