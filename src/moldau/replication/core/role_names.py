"""The roles of a replica, and the table of legal changes between the roles. The diagram in the docs is made
from this table."""

from collections.abc import Mapping
from enum import Enum


class ReplicaRole(Enum):
    """The roles that a replica of a partition can have in an epoch."""

    RESIGNED = "resigned"
    FOLLOWER = "follower"
    LEADER = "leader"


class IllegalMoveError(ValueError):
    """An illegal change of a replica. Either one epoch has two leaders, or a truncation would go below the
    watermark although the policy forbids this."""


_R, _F, _L = ReplicaRole
_NEWER = "newer epoch"

LEGAL_MOVES: Mapping[tuple[ReplicaRole, ReplicaRole], str] = {
    (_R, _R): "an epoch without a leader",
    (_R, _F): "the metadata name a leader",
    (_R, _L): "the metadata name this broker",
    (_F, _R): "stops, or an epoch without a leader",
    (_F, _F): "a newer epoch of a leader",
    (_F, _L): "elected in a newer epoch",
    (_L, _R): "stops, or an epoch without a leader",
    (_L, _F): "a newer epoch of another leader",
    (_L, _L): "elected again in a newer epoch",
}
"""The key is a pair of roles, from and to. The value is the condition. A resigned replica may get a role in
its own epoch. Every other change, except the change to resigned, needs a newer epoch, because an epoch has
only one leader."""


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {_R.value}"]
    for (source, target), reason in LEGAL_MOVES.items():
        lines.append(f"    {source.value} --> {target.value}: {reason}")
    return "\n".join(lines) + "\n"
