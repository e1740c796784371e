"""Request handlers. There is a package for each API family. The package offers handlers to the dispatcher,
and depends only on the parts of the node that it needs."""
