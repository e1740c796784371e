"""Kinds of topics. The kind of a topic is fixed at its creation. Each kind has a module, and there is a table
of all kinds. Pure."""
