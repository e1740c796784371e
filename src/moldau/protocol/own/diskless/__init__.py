"""Messages of the calls to a diskless coordinator, in a module for each API."""
