"""Request handlers. There is a package or a module for each API family. It has the handlers that the
dispatcher calls. A handler gets only the parts of the node that it needs."""
