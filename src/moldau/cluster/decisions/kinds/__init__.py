"""Kinds of topics, which are fixed at creation. There is a module with the row of each kind, and a table of
the rows. Pure."""
