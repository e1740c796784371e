"""One module per API family; each offers handlers to the dispatcher and knows only what it needs."""
