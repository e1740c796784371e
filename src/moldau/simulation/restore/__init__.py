"""Scenarios in which a cluster loses all disks and only its object store is left."""
