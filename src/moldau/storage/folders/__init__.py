"""The folders of a node's logs. This package handles their names, locks and checkpoints, and creates and
removes them."""
