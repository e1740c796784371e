"""Messages of the calls about the remote tier, one module per API."""
