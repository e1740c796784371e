"""Carrying out the core's effects, one class for each thing that effects touch. The order is the core's."""
