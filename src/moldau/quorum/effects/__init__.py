"""Carries out the core's effects. There is one class for each object that the effects change. The core
defines the order."""
