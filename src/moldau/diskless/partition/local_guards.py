"""Guards of transactions on diskless partitions whose coordinator this broker leads. No request is needed."""

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from moldau.coordinators.diskless.calls import GuardToIssue
from moldau.runtime import KafkaError


class LocalGuards(Protocol):
    """Guards that this broker knows. The result is 0 if another broker leads the coordinator."""

    def known(self, wanted: GuardToIssue) -> int:
        """The valid guard that the producer already has; 0 if there is none."""
        ...

    def issue(self, wanted: GuardToIssue) -> int:
        """The guard of the producer, which may be a new one; 0 if the producer may not get one now."""
        ...


class GuardKeeper(Protocol):
    """The coordinators that this broker leads, as far as they keep guards."""

    def known_guard(self, coordinator_id: int, wanted: GuardToIssue) -> int: ...

    def issue_guard(self, coordinator_id: int, wanted: GuardToIssue) -> int: ...


class GuardsOfLedCoordinators:
    """Finds the coordinator of a partition, and asks it if this broker leads it."""

    def __init__(self, owner_of: Callable[[UUID, int], int], keeper: GuardKeeper) -> None:
        """``owner_of`` returns the coordinator of a partition. It raises ``KafkaError`` for an unknown
        partition."""
        self._owner_of = owner_of
        self._keeper = keeper

    def known(self, wanted: GuardToIssue) -> int:
        return self._asked(self._keeper.known_guard, wanted)

    def issue(self, wanted: GuardToIssue) -> int:
        return self._asked(self._keeper.issue_guard, wanted)

    def _asked(self, ask: Callable[[int, GuardToIssue], int], wanted: GuardToIssue) -> int:
        try:
            owner = self._owner_of(wanted.topic_id, wanted.partition_index)
        except KafkaError:
            return 0
        return ask(owner, wanted)


class NoLocalGuards:
    """The guards of a broker that leads no coordinator."""

    def known(self, wanted: GuardToIssue) -> int:
        return 0

    def issue(self, wanted: GuardToIssue) -> int:
        return 0
