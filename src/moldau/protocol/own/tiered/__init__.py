"""Messages of the calls about the remote tier, in a module for each API."""
