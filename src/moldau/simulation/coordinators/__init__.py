"""Checks of coordinators in stories: the state of each term is the one that its log leads to."""
