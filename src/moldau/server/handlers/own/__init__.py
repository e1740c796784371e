"""Moldau's own APIs: calls to diskless coordinators, to the remote tier and for consolidation."""
