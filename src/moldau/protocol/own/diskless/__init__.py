"""Messages of the calls to a diskless coordinator. There is a module for each API."""
