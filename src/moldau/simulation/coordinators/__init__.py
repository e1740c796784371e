"""Checks of coordinators in scenarios. In each term, the state of a coordinator must be the state that
follows from its log."""
