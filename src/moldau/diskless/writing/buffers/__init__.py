"""The buffer of the next object: its memory, its batches, and the decision when to close it."""
