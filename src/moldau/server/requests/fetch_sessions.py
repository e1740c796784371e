"""Incremental fetch sessions (KIP-227). The broker stores which partitions a fetcher follows.

A full request (epoch 0) opens a session and lists partitions. Later requests contain only changes, and
responses contain only partitions with new data. A session belongs to a single fetcher. Its epoch increases by
one with each request. A session may be evicted when the cache is full.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from moldau.replication.idle_followers import IdleFollower, SessionFetches
from moldau.runtime.errors import ErrorCode, KafkaError

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_AGE_MIN_S: Final = 120.0


class FetchTarget(NamedTuple):
    """A partition as the fetcher names it: by topic id from version 13 on, otherwise by name."""

    topic: str
    topic_id: UUID
    partition: int


@dataclass(slots=True)
class SessionPosition:
    """A fetcher's position in a partition, and the values of the partition in the last response to the
    fetcher."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    told_high_watermark: int = -1
    told_log_start_offset: int = -1
    told_error: bool = False
    idle: IdleFollower | None = field(default=None, compare=False, repr=False)
    """The idle periods of this partition, if the fetcher is a follower."""

    def end_idle(self) -> None:
        """End the idle period, if there is one."""
        if self.idle is not None:
            self.idle.end()


class FetchSession:
    """The partitions of a fetcher, in the order in which they are served. The order rotates, so that every
    partition is first from time to time."""

    def __init__(self, session_id: int, positions: dict[FetchTarget, SessionPosition], now_s: float) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.positions = positions
        self.last_used_s = now_s
        self.created_s = now_s
        self.fetches = SessionFetches()
        """The fetches of a follower. For a consumer this object is not used."""

    def begin(self, sender: tuple[int, int], *, is_forbidden: bool) -> None:
        """Record a fetch of a follower, before its partitions are visited. ``sender`` is the broker id and
        the broker epoch of the follower. If the partitions are forbidden, all of them must be visited, and
        get errors."""
        if is_forbidden or self.fetches.sender != sender:
            self.end_idle_periods()
        self.fetches.sender = sender
        self.fetches.begin()

    def due(self) -> list[tuple[FetchTarget, SessionPosition]]:
        """The partitions that are not idle, in their order."""
        if not [1 for each in self.positions.values() if (idle := each.idle) is None or not idle.lasts]:
            return []
        due = [item for item in self.positions.items() if (idle := item[1].idle) is None or not idle.lasts]
        for _, position in due:
            position.end_idle()
        return due

    def end_idle_periods(self) -> None:
        """End the idle periods of all partitions."""
        for position in self.positions.values():
            position.end_idle()

    def update(
        self, changed: Mapping[FetchTarget, SessionPosition], forgotten: Iterable[FetchTarget]
    ) -> None:
        """Apply the changes that an incremental request contains."""
        for target, position in changed.items():
            known = self.positions.get(target)
            if known is None:
                self.positions[target] = position
            else:
                known.end_idle()
                known.fetch_offset = position.fetch_offset
                known.max_bytes = position.max_bytes
                if known.current_leader_epoch != position.current_leader_epoch:
                    # A follower ignores a response to a request with an earlier leader epoch. So perhaps it
                    # does not know the values in the last response.
                    known.told_high_watermark = known.told_log_start_offset = -1
                    known.current_leader_epoch = position.current_leader_epoch
                known.last_fetched_epoch = position.last_fetched_epoch
                known.log_start_offset = position.log_start_offset
        for target in forgotten:
            if (dropped := self.positions.pop(target, None)) is not None:
                dropped.end_idle()

    def served(self, target: FetchTarget) -> None:
        """Move a partition that returned data to the end, so that the other partitions are read first next
        time."""
        position = self.positions.pop(target, None)
        if position is not None:
            self.positions[target] = position


@dataclass(slots=True)
class FetchScope:
    """The partitions and the session of a Fetch request."""

    session: FetchSession | None
    """The session of the request. None means that the request has no session. The response then names no
    session."""
    positions: dict[FetchTarget, SessionPosition]
    incremental: bool
    """Whether the response omits partitions without new data."""

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else INVALID_SESSION_ID

    def follower_session(self, replica_id: int) -> FetchSession | None:
        """The session, if the request is an incremental request of a follower."""
        return self.session if self.incremental and replica_id >= 0 else None


class FetchSessions:
    """All sessions of a broker. There are at most ``slot_count`` sessions."""

    def __init__(self, slot_count: int, new_id: Callable[[], int]) -> None:
        self._slot_count = slot_count
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}
        self.eviction_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        session_id: int,
        epoch: int,
        requested: Mapping[FetchTarget, SessionPosition],
        forgotten: Iterable[FetchTarget],
        now_s: float,
    ) -> FetchScope:
        """Find or create the session of a request.

        Raises ``KafkaError`` with ``fetch_session_id_not_found`` or ``invalid_fetch_session_epoch``.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if (former := self._sessions.pop(session_id, None)) is not None:
                former.end_idle_periods()
            positions = dict(requested)
            if epoch == FINAL_EPOCH or not positions:
                return FetchScope(None, positions, incremental=False)
            return FetchScope(self._create(positions, now_s), positions, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = epoch + 1 if epoch < 2**31 - 1 else 1
        session.last_used_s = now_s
        session.update(requested, forgotten)
        return FetchScope(session, session.positions, incremental=True)

    def only_target(self, session_id: int, epoch: int) -> FetchTarget | None:
        """The partition of a session that has only one. The result is None for any other session, and if
        ``epoch`` is not the epoch of the session's next request."""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or len(session.positions) != 1:
            return None
        return next(iter(session.positions))

    def _create(self, positions: dict[FetchTarget, SessionPosition], now_s: float) -> FetchSession | None:
        if len(self._sessions) >= self._slot_count and not self._evict(len(positions), now_s):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == INVALID_SESSION_ID:
            session_id = self._new_id()
        session = FetchSession(session_id, positions, now_s)
        self._sessions[session_id] = session
        return session

    def _evict(self, newcomer_size: int, now_s: float) -> bool:
        """Free a slot by evicting a session that was not used for two minutes. If there is no such session,
        evict a session that is older than a minimum age and has fewer partitions than the new session
        (KIP-227). Returns whether a session was evicted."""
        if not self._sessions:
            return False
        idle = min(self._sessions.values(), key=lambda session: session.last_used_s)
        if now_s - idle.last_used_s > EVICTION_AGE_MIN_S:
            return self._drop(idle)
        smallest = min(
            self._sessions.values(), key=lambda session: (len(session.positions), session.created_s)
        )
        if len(smallest.positions) < newcomer_size and now_s - smallest.created_s > EVICTION_AGE_MIN_S:
            return self._drop(smallest)
        return False

    def _drop(self, session: FetchSession) -> bool:
        del self._sessions[session.session_id]
        session.end_idle_periods()
        self.eviction_count += 1
        return True
