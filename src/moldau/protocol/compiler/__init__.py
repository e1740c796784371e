"""Compiles message classes into functions that encode and decode them. Pure."""
