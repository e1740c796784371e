"""Effects that change the log: appends, truncations, and flushes."""

import asyncio
from collections.abc import Sequence
from typing import Final, assert_never

from moldau.quorum.append_queue import AppendQueue
from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.effects.event_queue import EventQueue
from moldau.quorum.voter_history import VoterHistory, voters_record
from moldau.records.builder import build_batch
from moldau.records.control import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    RecordedVoter,
    build_control_batch,
)
from moldau.records.record import Record
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.runtime.buffers import Buffer
from moldau.storage.snapshots.replicated_log import ReplicatedLog

RECORDS_A_TURN: Final = 1_000
"""Maximum number of records in a batch that is built on the event loop. To build a batch of this size takes
about 3 ms. Larger batches are built on a worker thread."""


def not_controller() -> KafkaError:
    """Return the error for appends on a node that does not lead."""
    return KafkaError(ErrorCode.not_controller, "this node does not lead the quorum")


class LogWriter:
    """The only writer of a replicated log. It decides when queued appends are written, and owns the flush in
    progress."""

    def __init__(
        self,
        machine: Machine,
        log: ReplicatedLog,
        appends: AppendQueue,
        history: VoterHistory,
        events: EventQueue,
        append_linger_ms: int,
    ) -> None:
        """``history`` is notified of each write."""
        self._machine = machine
        self._log = log
        self._appends = appends
        self._history = history
        self._events = events
        self._append_linger_ms = append_linger_ms
        self._append_id = 0
        self._append_scheduled = False
        self._is_flushing = False
        self._flush_again = False
        self._truncations = 0

    # Appends

    def schedule_append(self) -> None:
        """Schedule a write of the queued appends. The write begins after the linger time, if there is one.
        While a flush is in progress, nothing is scheduled."""
        if self._append_scheduled or self._is_flushing or self._appends.next_epoch is None:
            return
        self._append_scheduled = True
        loop = asyncio.get_running_loop()
        if self._append_linger_ms > 0:
            loop.call_later(self._append_linger_ms / 1000, self._request_append)
        else:
            loop.call_soon(self._request_append)

    def _request_append(self) -> None:
        self._append_scheduled = False
        epoch = self._appends.next_epoch
        if epoch is not None:
            self._append_id += 1
            self._events.submit(ev.AppendRequested(self._append_id, epoch))

    async def append_as_leader(self, epoch: int) -> None:
        """Write the queued appends of ``epoch`` that fit in one batch."""
        appends, now_ms = self._appends, self._machine.clock.now_ms()
        taken = appends.pop_batch(epoch)
        if not taken:
            return
        values = [value for append in taken for value in append.values]
        if len(values) > RECORDS_A_TURN:
            batch = await self._machine.workers.run(_batch_of, values, now_ms, epoch)
        else:
            batch = _batch_of(values, now_ms, epoch)
        info = self._log.append_as_leader(batch, epoch)
        appends.wrote(taken, info.first_offset)
        if appends.next_epoch is not None:
            self.schedule_append()
        self._events.submit_first(ev.LogAppended())

    def reject_append(self) -> None:
        """Refuse queued appends, because the core has decided that this node does not lead the epoch of these
        appends."""
        stale = self._appends.next_epoch
        if stale is not None:
            self._appends.fail(not_controller(), epoch=stale)
        self.schedule_append()

    def append_control(self, effect: fx.AppendLeaderChange | fx.AppendVoters) -> None:
        """Append the control records that begin a leader's epoch or change the voters."""
        log = self._log
        records: list[ControlRecord] = []
        match effect:
            case fx.AppendLeaderChange(epoch, leader_id, voters, granting_voters):
                log.initialize_epoch(epoch)
                records.append(
                    LeaderChange(
                        leader_id,
                        tuple(RecordedVoter(voter_id) for voter_id in voters),
                        tuple(RecordedVoter(voter_id) for voter_id in granting_voters),
                    )
                )
            case fx.AppendVoters(epoch, voter_set, kraft_version):
                if kraft_version is not None:
                    records.append(KRaftVersion(kraft_version))
                records.append(voters_record(voter_set))
            case _:
                assert_never(effect)
        batch = build_control_batch(records, timestamp=self._machine.clock.now_ms(), leader_epoch=epoch)
        info = log.append_as_leader(batch, epoch)
        if isinstance(effect, fx.AppendVoters):
            # The batch is read from the log, because the log has set the offsets in its header.
            for view in log.read(info.first_offset, 1).views:
                self._history.read(view)
        self._events.submit_first(ev.LogAppended())

    def append_as_follower(self, records: Sequence[Buffer]) -> None:
        """Append batches of the leader."""
        batches = records[0] if len(records) == 1 else b"".join(records)
        self._log.append_as_follower(batches)
        self._history.read(batches)
        self._events.submit_first(ev.LogAppended())

    # Truncations

    async def truncate(self, offset: int) -> None:
        """Drop all records at or after ``offset``, because the leader has other records."""
        self.note_truncation()
        await self._log.truncate_to(offset)
        self._history.truncate(offset)
        self._events.submit_first(ev.LogTruncated())

    def note_truncation(self) -> None:
        """Record that the log will be truncated. If a flush is in progress, the result of that flush then
        does not prove that the end of the log is durable."""
        self._truncations += 1

    # Flushes

    def start_flush(self) -> None:
        """Flush the log. If a flush is in progress, another flush follows it."""
        if self._is_flushing:
            self._flush_again = True
        else:
            self._is_flushing = True
            self._events.spawn(self._flush())

    async def _flush(self) -> None:
        while True:
            self._flush_again = False
            truncations = self._truncations
            offset = await self._log.flush()
            if truncations != self._truncations:
                continue  # The synced bytes may have been truncated and replaced by other bytes.
            self._events.submit(ev.LogFlushed(offset))
            if not self._flush_again:
                break
        self._is_flushing = False
        self.schedule_append()


def _batch_of(values: Sequence[bytes], now_ms: int, epoch: int) -> bytes:
    records = [Record(index, now_ms, None, value) for index, value in enumerate(values)]
    return build_batch(records, leader_epoch=epoch)
