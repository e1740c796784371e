"""The states of a classic group, and the allowed transitions between them. Pure."""

import enum
from collections.abc import Mapping
from typing import Final


class GroupState(enum.Enum):
    """The states have Kafka's names, which DescribeGroups and ListGroups send to clients."""

    EMPTY = "Empty"
    """The group has no members; it may have committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The coordinator waits for the members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the generation are known, and the leader of the group computes the assignment."""
    STABLE = "Stable"
    """The leader has sent the assignment, so every member can get its part of the assignment."""
    DEAD = "Dead"
    """The group was removed."""


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""For each state, the states that may follow it."""


def can_rebalance(state: GroupState) -> bool:
    """Whether a rebalance may start now. If one is already running, members join it instead."""
    return GroupState.PREPARING_REBALANCE in TRANSITIONS[state]
