"""Passes committed records to listeners. Each listener gets every record once, in order, and has its own
position in the log."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from moldau.storage.snapshots.replicated_log import ReplicatedLog, SnapshotReader

READ_MAX_BYTES = 1024 * 1024


class Committed(NamedTuple):
    """Whole committed batches, including control batches, from ``base_offset`` up to ``end_offset``.

    A view may contain several batches. Read it with ``records.batch.iter_headers``.
    """

    base_offset: int
    end_offset: int
    batches: list[memoryview]


class QuorumListener(Protocol):
    """A state machine on the log. It is called on the event loop. It must not block and must not raise
    exceptions."""

    def on_commit(self, committed: Committed) -> Iterator[None] | None:
        """Apply the batches. The views stay valid.

        If the work is long, return an iterator of steps that take some milliseconds each. Other tasks of the
        event loop run between two steps, and no other method is called before the last step.
        """
        ...

    def on_snapshot(self, reader: SnapshotReader) -> Iterator[None] | None:
        """Replace the state by this snapshot. The reader is closed when this method returns. If the method
        returns steps, the reader is closed after the last step.

        If the work is long, return its steps, as in ``on_commit``. The last step replaces the state.
        """
        ...

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """Record a new leader. If this node is the leader, all records before its epoch are already
        applied."""
        ...


@dataclass(slots=True)
class Subscription:
    """A listener, its applied offset, and the last leader of which it was notified."""

    listener: QuorumListener
    next_offset: int = 0
    has_begun: bool = False
    known_leader: tuple[int | None, int] = field(default=(None, -1))


class Subscriptions:
    """Passes all records up to the high watermark to every listener."""

    def __init__(self, log: ReplicatedLog, local_id: int) -> None:
        self._log = log
        self._local_id = local_id
        self._subscriptions: list[Subscription] = []
        self._commit_offset = 0
        self._leader: tuple[int | None, int] = (None, -1)
        self._epoch_start_offset = 0

    def add(self, listener: QuorumListener) -> None:
        """Add a listener. Pass the latest snapshot to it, and then all later records."""
        subscription = Subscription(listener)
        self._subscriptions.append(subscription)
        for _ in self._bring_up(subscription):
            pass

    async def committed(self, offset: int) -> None:
        """Pass all records before ``offset`` to all listeners."""
        self._commit_offset = max(self._commit_offset, offset)
        for subscription in list(self._subscriptions):
            for _ in self._bring_up(subscription):
                await asyncio.sleep(0)

    def leader_changed(self, leader_id: int | None, epoch: int, epoch_start_offset: int = 0) -> None:
        self._leader = (leader_id, epoch)
        self._epoch_start_offset = epoch_start_offset
        for subscription in self._subscriptions:
            self._tell_leader(subscription)

    def _bring_up(self, subscription: Subscription) -> Iterator[None]:
        yield from self._load_snapshot(subscription)
        while subscription.next_offset < self._commit_offset:
            start = subscription.next_offset
            result = self._log.read(start, READ_MAX_BYTES, upper_bound_offset=self._commit_offset)
            if result.next_offset <= start:
                break
            subscription.next_offset = result.next_offset
            steps = subscription.listener.on_commit(Committed(start, result.next_offset, result.views))
            if steps is not None:
                yield from steps
        self._tell_leader(subscription)

    def _load_snapshot(self, subscription: Subscription) -> Iterator[None]:
        """If the log begins after the listener's position, load the latest snapshot. The load takes several
        steps. If the start of the log moves beyond that snapshot before the last step, load the next
        snapshot.
        """
        while True:
            has_begun, subscription.has_begun = subscription.has_begun, True
            snapshot_id = self._log.latest_snapshot_id()
            is_behind = not has_begun or subscription.next_offset < self._log.start_offset
            if snapshot_id is None or not is_behind:
                return
            if has_begun and snapshot_id.offset <= subscription.next_offset:
                return
            reader = self._log.open_snapshot(snapshot_id)
            if reader is None:
                return
            try:
                steps = subscription.listener.on_snapshot(reader)
                if steps is not None:
                    yield from steps
            finally:
                reader.close()
            subscription.next_offset = snapshot_id.offset

    def _tell_leader(self, subscription: Subscription) -> None:
        leader_id, epoch = self._leader
        if subscription.known_leader == self._leader or epoch < 0:
            return
        if leader_id == self._local_id and subscription.next_offset <= self._epoch_start_offset:
            return
        subscription.known_leader = self._leader
        subscription.listener.on_leader_change(leader_id, epoch)
