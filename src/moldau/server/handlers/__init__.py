"""Request handlers. There is a package for each API family. It offers handlers to the dispatcher, and depends
only on the parts of the node that it needs."""
