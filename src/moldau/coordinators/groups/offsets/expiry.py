"""Decides which committed offsets have expired (KIP-211). Pure."""

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets.store import OffsetStore
from moldau.coordinators.groups.operation import Turn
from moldau.coordinators.groups.records import CommittedOffset, OffsetRecord


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
    for (topic, partition), value in store.of_group(group.group_id).items():
        if (
            group.is_subscribed(topic)
            or store.is_unstable(group.group_id, topic, partition)
            or not _is_expired(turn, value, since_ms)
        ):
            nothing_left = False
        elif most <= 0:
            return False
        else:
            most -= 1
            turn.out.records.append(OffsetRecord(group.group_id, topic, partition, None))
            turn.tally.offset_expirations += 1
    return nothing_left and not store.has_open_transactions(group.group_id)


def _is_expired(turn: Turn, value: CommittedOffset, since_ms: int | None) -> bool:
    if value.expire_timestamp_ms >= 0:
        return turn.expiry_now_ms >= value.expire_timestamp_ms
    start_ms = value.commit_timestamp_ms if since_ms is None else since_ms
    return turn.expiry_now_ms - start_ms >= turn.settings.offsets_retention_ms
