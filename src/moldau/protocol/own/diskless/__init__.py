"""Messages of the calls to a diskless coordinator, one module per API."""
