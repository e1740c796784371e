"""One room per API family; each offers handlers to the dispatcher and depends only on what it needs."""
