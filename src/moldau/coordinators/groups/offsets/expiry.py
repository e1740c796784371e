"""Decides which committed offsets have expired (KIP-211). Pure."""

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.operation import Turn
from moldau.coordinators.groups.records import OffsetRecord


def expire(turn: Turn, store: OffsetStore, group: Group, most: int) -> bool:
    """Delete at most ``most`` offsets that are older than their retention (KIP-211). Returns whether the
    group has no offsets left.

    For an empty group, the retention time begins when the group becomes empty. A stable consumer group keeps
    the offsets of the topics that its members read. For its other offsets, and for simple groups, the
    retention time begins at the last commit. Any other group with members keeps all its offsets.
    """
    if group.protocol_type is None:
        since_ms = None
    elif group.state is GroupState.EMPTY:
        since_ms = None if group.state_timestamp_ms < 0 else group.state_timestamp_ms
    elif not (group.uses_consumer_protocol and group.topics is not None and group.state is GroupState.STABLE):
        return False
    else:
        since_ms = None
    nothing_left = True
    for topic, partition, committed_ms, expires_ms in store.times_of_group(group.group_id):
        if (
            group.is_subscribed(topic)
            or store.is_unstable(group.group_id, topic, partition)
            or not _is_expired(turn, committed_ms if since_ms is None else since_ms, expires_ms)
        ):
            nothing_left = False
        elif most <= 0:
            return False
        else:
            most -= 1
            turn.out.records.append(OffsetRecord(group.group_id, topic, partition, None))
            turn.tally.offset_expirations += 1
    return nothing_left and not store.has_open_transactions(group.group_id)


def _is_expired(turn: Turn, since_ms: int, expires_ms: int) -> bool:
    if expires_ms >= 0:
        return turn.expiry_now_ms >= expires_ms
    return turn.expiry_now_ms - since_ms >= turn.settings.offsets_retention_ms
