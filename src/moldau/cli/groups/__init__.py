"""The commands for consumer groups, and a member of a group."""
