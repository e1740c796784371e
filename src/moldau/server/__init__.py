"""A node: request handlers by API family, and the assembly that puts every room together."""
