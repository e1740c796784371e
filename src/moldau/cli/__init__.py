"""The command line: ``moldau dev``, ``moldau node`` and the tools."""
