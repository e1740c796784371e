"""A node: request handlers by API family, and the composition of all parts."""
