"""The folders of a node's logs: names, locks, checkpoints, creation and removal."""
