"""A node. This package has the request handlers of each API family, and the composition of all parts of a
node."""
