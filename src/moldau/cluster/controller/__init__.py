"""The controller: its decisions as one object, the shell that runs it, and the ways to reach it."""
