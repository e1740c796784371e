"""Checks of coordinators in scenarios: the state of each term is the state that follows from its log."""
