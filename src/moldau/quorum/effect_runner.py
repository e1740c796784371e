"""Carries out the core's effects on the log, the disk and the peers. The order is ``effects.py``'s."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core.messages import FetchResponse, FetchSnapshotResponse
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.stored_log import to_stored
from moldau.quorum.voter_history import voters_record
from moldau.records.builder import build_batch
from moldau.records.control import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    RecordedVoter,
    build_control_batch,
)
from moldau.records.record import Record
from moldau.runtime import ErrorCode, KafkaError
from moldau.storage.snapshots.replicated_log import RawSnapshotWriter

if TYPE_CHECKING:
    from moldau.quorum.driver import QuorumDriver


RECORDS_A_TURN: Final = 1_000
"""Records of a batch that is built on the event loop: some 3 ms."""


class EffectRunner:
    """One per driver."""

    def __init__(self, driver: "QuorumDriver") -> None:
        self._driver = driver
        self._is_flushing = False
        self._flush_again = False
        self._truncations = 0
        self._download: RawSnapshotWriter | None = None

    @property
    def is_flushing(self) -> bool:
        return self._is_flushing

    async def run(self, effects: list[fx.Effect]) -> None:
        """Run all effects of one step, in order."""
        for effect in effects:
            match effect:
                case fx.PersistElectionState(state):
                    machine, _, store, _, _ = self._driver.ports
                    is_static = self._driver.is_static
                    await machine.workers.run(partial(store.write, state, is_static=is_static))
                case fx.VotersChanged(voters):
                    self._driver.voters_changed(voters)
                case fx.Send():
                    self._driver.spawn(self._driver.send(effect))
                case fx.InstallSnapshot(snapshot_id):
                    await self._install(snapshot_id)
                case fx.SendReply() | fx.ReplyWithRecords() | fx.ReplyWithSnapshot():
                    self._reply(effect)
                case fx.BecameLeader() | fx.BecameFollower() | fx.LeaderLost() | fx.LeadershipEnded():
                    self._leader_changed(effect)
                case fx.CommitAdvanced(offset):
                    await self._committed(offset)
                case fx.WriteSnapshotChunk() | fx.AbandonSnapshot():
                    self._download_snapshot(effect)
                case fx.FlushLog():
                    self._start_flush()
                case fx.AppendAsLeader() | fx.RejectAppend():
                    await self._append_as_leader(effect)
                case fx.AppendLeaderChange() | fx.AppendVoters():
                    self._append_control(effect)
                case fx.AppendAsFollower() | fx.TruncateLog():
                    await self._change_as_follower(effect)
                case _:
                    assert_never(effect)

    def abandon_download(self) -> None:
        download, self._download = self._download, None
        if download is not None:
            download.abandon()

    # The log

    def _append_control(self, effect: fx.AppendLeaderChange | fx.AppendVoters) -> None:
        """Append the control records that begin a leader's epoch, or change the voters."""
        machine, log, _, _, _ = self._driver.ports
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
        batch = build_control_batch(records, timestamp=machine.clock.now_ms(), leader_epoch=epoch)
        info = log.append_as_leader(batch, epoch)
        if isinstance(effect, fx.AppendVoters):
            # The offsets are now set in the batch.
            for view in log.read(info.first_offset, 1).views:
                self._driver.history.read(view)
        self._driver.submit_first(ev.LogAppended())

    async def _append_as_leader(self, effect: fx.AppendAsLeader | fx.RejectAppend) -> None:
        machine, log, _, appends, _ = self._driver.ports
        now_ms = machine.clock.now_ms()
        match effect:
            case fx.AppendAsLeader(_, epoch):
                taken = appends.take(epoch)
                if not taken:
                    return
                values = [value for append in taken for value in append.values]
                if len(values) > RECORDS_A_TURN:
                    batch = await machine.workers.run(_batch_of, values, now_ms, epoch)
                else:
                    batch = _batch_of(values, now_ms, epoch)
                info = log.append_as_leader(batch, epoch)
                appends.wrote(taken, info.first_offset)
                self._driver.wrote(info.size_bytes)
                if appends.next_epoch is not None:
                    self._driver.schedule_append()
            case fx.RejectAppend():
                stale = appends.next_epoch
                if stale is not None:
                    appends.fail(_not_controller(), epoch=stale)
                self._driver.schedule_append()
                return
            case _:
                assert_never(effect)
        self._driver.submit_first(ev.LogAppended())

    async def _change_as_follower(self, effect: fx.AppendAsFollower | fx.TruncateLog) -> None:
        _, log, _, _, _ = self._driver.ports
        match effect:
            case fx.AppendAsFollower(records):
                batches = records[0] if len(records) == 1 else b"".join(records)
                info = log.append_as_follower(batches)
                self._driver.history.read(batches)
                self._driver.wrote(info.size_bytes)
                self._driver.submit_first(ev.LogAppended())
            case fx.TruncateLog(offset):
                self._truncations += 1
                await log.truncate_to(offset)
                self._driver.history.truncate(offset)
                self._driver.submit_first(ev.LogTruncated())
            case _:
                assert_never(effect)

    def _start_flush(self) -> None:
        if self._is_flushing:
            self._flush_again = True
        else:
            self._is_flushing = True
            self._driver.spawn(self._flush())

    async def _flush(self) -> None:
        _, log, _, _, _ = self._driver.ports
        while True:
            self._flush_again = False
            truncations = self._truncations
            offset = await log.flush()
            if truncations != self._truncations:
                continue  # the synced bytes may be truncated and replaced by others
            self._driver.submit(ev.LogFlushed(offset))
            if not self._flush_again:
                break
        self._is_flushing = False
        self._driver.schedule_append()

    # Snapshots

    def _download_snapshot(self, effect: fx.WriteSnapshotChunk | fx.AbandonSnapshot) -> None:
        _, log, _, _, _ = self._driver.ports
        match effect:
            case fx.WriteSnapshotChunk(snapshot_id, position, data):
                if position == 0:
                    self.abandon_download()
                    self._download = log.store_snapshot(to_stored(snapshot_id))
                if self._download is not None:
                    self._download.append(data)
            case fx.AbandonSnapshot():
                self.abandon_download()
            case _:
                assert_never(effect)

    async def _install(self, snapshot_id: OffsetAndEpoch) -> None:
        _, log, _, _, _ = self._driver.ports
        download, self._download = self._download, None
        if download is not None:
            await download.freeze()
        self._truncations += 1
        if log.end_offset >= snapshot_id.offset:
            # Records here above the high watermark belong to another history.
            await log.truncate_to(max(log.high_watermark, log.start_offset))
        await log.truncate_to_latest_snapshot()
        log.update_high_watermark(snapshot_id.offset)
        self._driver.history.load(log)
        self._driver.submit_first(ev.SnapshotInstalled(snapshot_id))

    # Notifications

    async def _committed(self, offset: int) -> None:
        _, log, _, appends, subscriptions = self._driver.ports
        log.update_high_watermark(offset)
        await subscriptions.committed(offset)
        appends.commit(offset)

    def _leader_changed(
        self, effect: fx.BecameLeader | fx.BecameFollower | fx.LeaderLost | fx.LeadershipEnded
    ) -> None:
        _, _, _, appends, subscriptions = self._driver.ports
        match effect:
            case fx.BecameLeader(epoch, epoch_start_offset):
                self._driver.leader_changed(self._driver.local_id, epoch)
                subscriptions.leader_changed(self._driver.local_id, epoch, epoch_start_offset)
                return
            case fx.BecameFollower(epoch, leader_id):
                self._driver.leader_changed(leader_id, epoch)
                subscriptions.leader_changed(leader_id, epoch)
            case fx.LeaderLost(epoch):
                self._driver.leader_changed(None, epoch)
                subscriptions.leader_changed(None, epoch)
            case fx.LeadershipEnded(epoch):
                self._driver.resigned(epoch)
                subscriptions.leader_changed(None, epoch)
            case _:
                assert_never(effect)
        appends.fail(_not_controller())

    def _reply(self, effect: fx.SendReply | fx.ReplyWithRecords | fx.ReplyWithSnapshot) -> None:
        _, log, _, _, _ = self._driver.ports
        match effect:
            case fx.SendReply(request_id, response):
                self._driver.reply(request_id, response)
            case fx.ReplyWithRecords(request_id, fetched, offset, max_bytes):
                # Copied: the end of the log may be cut while the answer waits in a socket's buffer.
                views = log.read(offset, max_bytes).views
                self._driver.reply(request_id, _with_records(fetched, b"".join(views)))
            case fx.ReplyWithSnapshot(request_id, part, max_bytes):
                reader = log.open_snapshot(to_stored(part.snapshot_id))
                if reader is None:
                    self._driver.reply(request_id, _with_data(part, b"", ErrorCode.snapshot_not_found))
                    return
                try:
                    data = bytes(reader.read(part.position, max_bytes))
                finally:
                    reader.close()
                self._driver.reply(request_id, _with_data(part, data, ErrorCode.none))
            case _:
                assert_never(effect)


def _batch_of(values: Sequence[bytes], now_ms: int, epoch: int) -> bytes:
    records = [Record(index, now_ms, None, value) for index, value in enumerate(values)]
    return build_batch(records, leader_epoch=epoch)


def _with_records(response: FetchResponse, records: bytes) -> FetchResponse:
    return FetchResponse(
        error=response.error,
        leader_id=response.leader_id,
        epoch=response.epoch,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        records=(records,) if records else (),
    )


def _with_data(response: FetchSnapshotResponse, data: bytes, error: ErrorCode) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        error=error,
        leader_id=response.leader_id,
        epoch=response.epoch,
        snapshot_id=response.snapshot_id,
        size_bytes=response.size_bytes,
        position=response.position,
        data=data,
    )


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.not_controller, "this node does not lead the quorum")
