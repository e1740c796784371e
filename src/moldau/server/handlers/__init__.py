"""A package for each API family. Each package offers handlers to the dispatcher and depends only on what
it needs.
"""
