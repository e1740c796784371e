"""Canonical forms of coordinators' states: plain, sorted values of all that replay makes, for ``==``.

State of the moment is left out, as a restart does not bring it back: waiting requests, timers, members that
are about to join.
"""

from typing import Any

from moldau.coordinators.diskless.state.partitions import PartitionState
from moldau.coordinators.diskless.state.shard import DisklessShard
from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.shard import GroupShard
from moldau.coordinators.transactions.codec import TransactionCodec, TransactionRecord
from moldau.coordinators.transactions.shard import TransactionShard


def canonical_state(shard: object) -> dict[str, Any]:
    """The state of a shard by the names of its parts. Raises ``TypeError`` for a kind without a form here."""
    match shard:
        case DisklessShard():
            return _diskless(shard)
        case GroupShard():
            return _groups(shard)
        case TransactionShard():
            return _transactions(shard)
        case _:
            raise TypeError(
                f"{type(shard).__name__} has no canonical form: stories cannot compare its states"
            )


def differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The parts in which two states of one kind differ, with the first row that only one of them has."""
    found = []
    for part in sorted(one.keys() | other.keys()):
        ours, theirs = one.get(part, []), other.get(part, [])
        if ours != theirs:
            only_ours = next((row for row in ours if row not in theirs), None)
            only_theirs = next((row for row in theirs if row not in ours), None)
            found.append(f"{part}: {only_ours} against {only_theirs}")
    return "; ".join(found)


def _diskless(shard: DisklessShard) -> dict[str, Any]:
    partitions = sorted(shard.partitions, key=lambda partition: partition.number)
    return {
        "partitions": [_partition(partition) for partition in partitions],
        "producers": [
            (partition.number, producer_id, window)
            for partition in partitions
            for producer_id, window in sorted(partition.producers.items())
        ],
        "results": sorted((key, *remembered) for key, remembered in shard.files.results()),
        "closed": sorted(shard.files.closed()),
    }


def _partition(partition: PartitionState) -> tuple[Any, ...]:
    transactions = partition.transactions
    return (
        partition.number,
        partition.id,
        partition.name,
        partition.log_start,
        partition.wal_start,
        partition.next,
        partition.prune_epoch,
        partition.last_prune,
        partition.remote_position,
        None
        if transactions is None
        else (sorted(transactions.open_from.items()), sorted(transactions.coordinator_epochs.items())),
    )


def _transactions(shard: TransactionShard) -> dict[str, Any]:
    """The transactions as their records describe them; the epoch before a bump is in no record."""
    encode = TransactionCodec().encode
    records = (encode(TransactionRecord(name, found)) for name, found in shard.by_id.items())
    return {"transactions": sorted(records)}


def generations(shard: object) -> dict[str, tuple[Any, ...]]:
    """The last complete generation of each group, as far as its record says it; empty for other kinds.

    Times, time-outs and the addresses of clients are left out: a member may change its own without a record.
    """
    if not isinstance(shard, GroupShard):
        return {}
    return {
        group_id: (
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader,
            [(one.member_id, one.instance_id, one.subscription, one.assignment) for one in stored.members],
        )
        for group_id, group in shard.classic.by_id.items()
        if group.generation > 0 and not _is_between(group)
        for stored in (group.stored(),)
    }


def unsettled(shard: object) -> set[str]:
    """Groups between two generations, of which the log has the earlier one."""
    if not isinstance(shard, GroupShard):
        return set()
    return {group_id for group_id, group in shard.classic.by_id.items() if _is_between(group)}


def _is_between(group: Group) -> bool:
    return group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)


def _groups(shard: GroupShard) -> dict[str, Any]:
    """Committed offsets; for groups see :func:`generations`."""
    offsets = shard.offsets.store
    return {
        "offsets": [
            (group_id, place, value)
            for group_id in sorted(offsets.group_ids())
            for place, value in sorted(offsets.of_group(group_id).items())
        ],
        "places": [
            (group_id, sorted(offsets.places(group_id)), offsets.has_open_transactions(group_id))
            for group_id in sorted(offsets.group_ids())
        ],
    }
