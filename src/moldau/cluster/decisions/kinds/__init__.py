"""Kinds of topics that are fixed at creation: a module with the row of each kind, and their table. Pure."""
