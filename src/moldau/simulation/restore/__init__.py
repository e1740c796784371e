"""Scenarios in which all disks of a cluster vanish and only its object store is left."""
