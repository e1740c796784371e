"""The controller of a node, and the APIs of its listeners."""
