"""Transactions on a broker: their coordinators, the markers, and the checks of transactional appends."""
