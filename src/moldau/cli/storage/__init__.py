"""The commands of ``moldau storage``: folders of nodes, and the saved states of a cluster."""
