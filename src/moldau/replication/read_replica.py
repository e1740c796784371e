"""The replica that consumers of another rack read from (KIP-392). Pure."""

from collections.abc import Mapping


def nearest_replica(client_rack: str, end_offsets: Mapping[int, int], racks: Mapping[int, str | None]) -> int:
    """The follower that serves the consumers of a rack (KIP-392), -1 without one.

    ``end_offsets``: by follower that has the consumer's offset, the end of its log; ``racks``: of the active
    brokers. The follower with the most records serves, the one with the lower id where they are equal.
    """
    near = [broker_id for broker_id in end_offsets if racks.get(broker_id) == client_rack]
    return max(near, key=lambda broker_id: (end_offsets[broker_id], -broker_id), default=-1)
