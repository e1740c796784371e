"""The state of the producers that wrote to a log, and its snapshots."""
