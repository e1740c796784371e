"""The commands that show and change a cluster."""
