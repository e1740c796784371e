"""The folders of a node's logs: names, locks, checkpoints, and how folders come and go."""
