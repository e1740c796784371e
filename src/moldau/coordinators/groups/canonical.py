"""The groups of one partition in canonical form: committed offsets, and complete generations. Pure."""

from collections.abc import Iterable
from typing import Any

from moldau.coordinators.groups.classic.group import Group
from moldau.coordinators.groups.classic.states import GroupState
from moldau.coordinators.groups.offsets.offsets import GroupOffsets
from moldau.coordinators.shard import CanonicalState


def canonical(groups: Iterable[tuple[str, Group]], offsets: GroupOffsets) -> CanonicalState:
    """Return the offsets, and the last complete generation of each group. Only the data in the group's record
    are included.

    If a group is about to change to its next generation, its record still contains the earlier generation.
    Such a group is listed in ``unwritten``.
    """
    store, by_id = offsets.store, dict(groups)
    return CanonicalState(
        parts={
            "offsets": [
                (group_id, place, value)
                for group_id in sorted(store.group_ids())
                for place, value in sorted(store.of_group(group_id).items())
            ],
            "places": [
                (group_id, sorted(store.partitions(group_id)), store.has_open_transactions(group_id))
                for group_id in sorted(store.group_ids())
            ],
        },
        named={
            f"group {group_id}": _generation(group)
            for group_id, group in by_id.items()
            if group.generation > 0 and not _is_between(group)
        },
        unwritten=frozenset(f"group {group_id}" for group_id, group in by_id.items() if _is_between(group)),
    )


def _generation(group: Group) -> tuple[Any, ...]:
    """Times, timeouts and addresses of clients are left out, because they can change without a new record."""
    members = [
        (one.member_id, one.instance_id, one.subscription, one.assignment) for one in group.stored().members
    ]
    return group.generation, group.protocol_type, group.protocol_name, group.leader, members


def _is_between(group: Group) -> bool:
    return group.state in (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
