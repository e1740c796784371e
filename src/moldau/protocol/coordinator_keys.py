"""The types of keys by which FindCoordinator finds coordinators. There is one type for each kind of
coordinator."""

import enum


class CoordinatorKeyType(enum.IntEnum):
    """FindCoordinator's ``KeyType``, a number of one byte. Kafka has 0 to 2; 2 (share groups) is not
    supported yet."""

    GROUP = 0
    """The key is a group's id."""
    TRANSACTION = 1
    """The key is a transactional id."""
    DISKLESS = 116
    """The key is the number of a diskless coordinator (KIP-1164). This type is Moldau's own."""
