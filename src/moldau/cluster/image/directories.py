"""The log directory ids that KIP-858 reserves, and their meanings."""

import uuid

MIGRATING_DIRECTORY = uuid.UUID(int=0)
"""This id means that the replica has a directory whose id is not in the metadata yet, because the replica's
records were written before KIP-858."""
UNASSIGNED_DIRECTORY = uuid.UUID(int=1)
"""This id means that the broker has not chosen a directory for the replica yet."""
LOST_DIRECTORY = uuid.UUID(int=2)
"""This id means that the replica is in a failed directory whose own id is unknown."""
RESERVED_DIRECTORY_COUNT = 100
"""KIP-858 reserves the ids below this number. A real directory never has such an id."""
