"""Chooses the replica from which consumers of another rack read (KIP-392). Pure."""

from collections.abc import Mapping


def nearest_replica(client_rack: str, end_offsets: Mapping[int, int], racks: Mapping[int, str | None]) -> int:
    """Return the follower that serves the consumers of a rack (KIP-392); -1 if there is no such follower.

    ``end_offsets`` contains the log end of each follower that has the consumer's offset. ``racks`` contains
    the racks of the active brokers. The follower with the most records is chosen. Among followers with
    equally many records, the lowest id is chosen.
    """
    near = [broker_id for broker_id in end_offsets if racks.get(broker_id) == client_rack]
    return max(near, key=lambda broker_id: (end_offsets[broker_id], -broker_id), default=-1)
