"""Messages of the calls about the remote tier. There is a module for each API."""
