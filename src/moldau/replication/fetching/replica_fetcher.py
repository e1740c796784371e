"""Copies the logs of leaders. Each connection to a leader has one task with a fetch session.

A task drives :class:`FollowerSession` and each partition's :class:`Following`. A partition is *held* while
its log is truncated or synced, or for a pause after an error. Requests leave out a held partition and
continue with the other partitions.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Final

from moldau.network.client.node_connection import NodeConnection
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.messages.fetch import FetchResponse, PartitionData
from moldau.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from moldau.protocol.partitions import PartitionKey
from moldau.protocol.schema import Message
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau.replication.classic_partition import ClassicPartition
from moldau.replication.core.divergence import UNDEFINED
from moldau.replication.core.follower import FetchPosition
from moldau.replication.core.role_names import IllegalMoveError
from moldau.replication.fetching.append_parts import TURN_COST, append_parts
from moldau.replication.fetching.catching_up import (
    CatchUpPace,
    CopyProgress,
    CopyTurns,
    Move,
    copy_limits,
    is_far_behind,
)
from moldau.replication.fetching.fetch_session import FollowerSession
from moldau.replication.fetching.fetcher_context import FetcherContext
from moldau.replication.fetching.remote_beginning import begin_behind_remote, list_offset, truncate
from moldau.replication.fetching.snapshot_download import FETCH_SNAPSHOT_VERSION, SnapshotDownload
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.runtime.gathered_lines import GatheredLines
from moldau.storage.snapshots.replicated_log import LogPosition
from moldau.storage.snapshots.snapshot_log import SnapshotLog

logger = logging.getLogger(__name__)

FIRST_BACKOFF_MS: Final = 20
"""Pause in ms after a partition's first error. It is short, because the usual cause of this error ends soon:
one of the two brokers does not know the result of an election yet."""
_UNKNOWN_SESSION: Final = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)
HURRY_S: Final = 0.05
"""Time in seconds for which a partition that is new, or was left out, waits for the request in flight. After
this time the request is cancelled, so that a new request can include the partition."""
HURRIES_MAX: Final = 5
"""Number of consecutive errors of a partition, or of works on it, after which no more requests are cancelled
for this partition."""
THROTTLED_S: Final = 0.1
"""Pause in seconds after which a throttled follower checks its quota again. It is also the pause after which
a copy that the leader throttles is requested again."""
CUT_POLL_S: Final = 0.05
"""Pause in seconds after which a fetcher checks again whether a truncation is complete."""
SYNC_POLL_MS: Final = 5
"""Maximum wait of a fetch at the leader, in ms, while the records of another partition of this fetcher are
being synced. Only the next fetch acknowledges the synced records, and a connection has only one fetch at a
time. Therefore the fetch in progress must end soon."""

SYNC_PAUSE_S: Final = 0.005
"""Maximum pause in seconds before a fetch, while records are being synced. If their sync ends in this time,
the fetch acknowledges them. Without the pause, the fetch would leave them out, and could wait at the leader
for :data:`SYNC_POLL_MS`."""
SHORT_SYNC_S: Final = SYNC_PAUSE_S / 2
"""If syncs usually take longer than this time in seconds, fetches do not pause for them."""
SYNCS_AVERAGED: Final = 8

Work = Callable[[], Coroutine[Any, Any, Any]]


class _Followed:
    """A followed partition, and the reason why it is not requested now."""

    __slots__ = ("failures", "held", "hurries", "is_caught_up", "key", "partition", "progress")

    def __init__(self, partition: ClassicPartition, progress: CopyProgress | None) -> None:
        """``progress`` is ``None`` on a connection that is not for copies."""
        self.partition = partition
        self.progress = progress
        self.key = partition.key
        self.held: asyncio.TimerHandle | asyncio.Task[None] | None = None
        """The work or the pause that must end before the partition is requested again."""
        self.failures = 0
        """Number of consecutive failures."""
        self.hurries = 0
        """Number of works on the partition for which a request was cancelled since the last response that
        followed the log."""
        self.is_caught_up = False
        """Whether this follower's log had all committed records of the partition when the leader answered
        last."""


class ReplicaFetcher:
    """Follows partitions of one leader over one connection. This class is used on the event loop.

    A connection is either for copies, with a ``pace``, or for all other partitions. If a partition belongs to
    the other kind of connection now, the fetcher calls ``move``.
    """

    def __init__(
        self, context: FetcherContext, leader_id: int, move: Move, pace: CatchUpPace | None = None
    ) -> None:
        self._quota = context.quota
        self._move = move
        self._pace = pace
        self._turns = None if pace is None else CopyTurns()
        self._copied_bytes = 0
        """Bytes of the response that is being processed, for which this connection must pause."""
        self._turn_cost = 0
        """Cost of the appends since an iteration of the event loop was ended for them."""
        self._local_id = context.local_id
        self._leader_id = leader_id
        self._settings = context.settings
        self._brokers = context.brokers
        self._unexpected = context.unexpected
        self._client = RpcClient(context.entropy, client_id=f"replica-{context.local_id}")
        limits = context.settings.limits
        self._session = FollowerSession(context.local_id, limits if pace is None else copy_limits(limits))
        self._followed: dict[PartitionKey, _Followed] = {}
        self._syncs: set[asyncio.Task[None]] = set()
        self._sync_s = 0.0
        """Moving average of the durations of syncs, in seconds."""
        self._wake = asyncio.Event()
        self._waits = False
        self._gives_up = False
        """Whether the request in progress is being cancelled, so that its answer is ignored."""
        self._hurry: asyncio.TimerHandle | None = None
        self._refusals = GatheredLines(logger, logging.INFO, "%d partitions cannot be followed yet: %s (%s)")
        self._unreachable = ErrorCode.none
        self.problem = ""
        """The reason why the leader does not answer; empty while it answers."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"follow broker {leader_id}")

    def __len__(self) -> int:
        return len(self._followed)

    def partition(self, key: PartitionKey) -> ClassicPartition:
        """The followed partition with this key."""
        return self._followed[key].partition

    def add(self, partition: ClassicPartition, *, is_caught_up: bool = False) -> None:
        """Follow a partition, beginning at the end of the log on this broker. ``is_caught_up`` tells whether
        this log has all committed records, according to the last response on another connection."""
        self._release(partition.key)
        progress = None if self._pace is None else CopyProgress(asyncio.get_running_loop().time())
        followed = self._followed[partition.key] = _Followed(partition, progress)
        followed.is_caught_up = is_caught_up
        self._session.add(partition.key)
        if self._turns is not None:
            self._turns.add(partition.key)
        self._ask_soon()

    def remove(self, key: PartitionKey) -> None:
        """Stop following a partition. A response that arrives later is ignored."""
        self._release(key)
        if self._followed.pop(key, None) is not None:
            self._session.remove(key)
            if self._turns is not None:
                self._turns.remove(key)

    def brokers_changed(self) -> None:
        """Use the leader's present address and this broker's present registration. One of them may have
        changed."""
        self._wake.set()

    def _ask_soon(self) -> None:
        self._wake.set()
        # A request for a copy ends soon.
        if self._waits and self._hurry is None and self._pace is None:
            self._hurry = asyncio.get_running_loop().call_later(HURRY_S, self._give_up)

    def _give_up(self) -> None:
        """Cancel the request in progress, so that a new request can be sent now. If the partitions are idle,
        the leader would answer only after ``replica.fetch.wait.max.ms``."""
        self._hurry = None
        leader = self._leader()
        has_work = any(isinstance(each.held, asyncio.Task) for each in self._followed.values())
        # The connection is not closed while there is work on held partitions, because this work may send
        # requests on the same connection.
        if leader is not None and not has_work:
            self._gives_up = True
            leader.disconnect()

    async def stop(self) -> None:
        """Stop the fetcher. A truncation in progress is completed."""
        for key in self._followed:
            self._release(key)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._refusals.flush()
        await self._client.close()

    # -- fetching -------------------------------------------------------------------------------

    async def _run(self) -> None:
        errors = 0
        while True:
            self._wake.clear()
            try:
                is_idle = not await self._fetch()
            except Exception as error:
                self._session.reset()
                if isinstance(error, KafkaError):
                    self._note_unreachable(error)
                else:
                    self._unexpected.report("following another broker", error)
                errors += 1
                await asyncio.sleep(self._backoff_ms(errors) / 1000)
            else:
                errors = 0
                if is_idle:
                    await self._wake.wait()

    async def _fetch(self) -> bool:
        """Send one request and process the response. Returns False when there is nothing to request."""
        broker_epoch = self._brokers.local_epoch
        leader = self._leader()
        if broker_epoch < 0 or leader is None:
            return False
        if self._syncs and self._sync_s <= SHORT_SYNC_S:
            _, pending = await asyncio.wait(self._syncs, timeout=SYNC_PAUSE_S)
            if pending:
                self._sync_s = max(self._sync_s, SYNC_PAUSE_S)
        if self._turns is not None:
            self._give_turn(self._turns)
        request = self._session.request(self._requested_position, broker_epoch)
        if request is None:
            return False
        if self._syncs:
            request = replace(request, max_wait_ms=min(request.max_wait_ms, SYNC_POLL_MS))
        timeout_ms = self._settings.request_timeout_ms + self._settings.limits.wait_max_ms
        self._waits, self._gives_up = True, False
        try:
            response: FetchResponse = await leader.ask(request, timeout_ms)
        except KafkaError:
            if self._gives_up:
                # This fetcher has cancelled the request. The leader may have sent the response, and assumes
                # that it has arrived. Therefore a new session is needed.
                self._session.reset()
                return True
            raise
        finally:
            self._waits = False
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None
        if not self._session.accept(response):
            if response.error_code not in _UNKNOWN_SESSION:
                raise KafkaError(response.error_code)
            return True
        self._unreachable, self.problem = ErrorCode.none, ""
        for topic in response.responses:
            for row in topic.partitions:
                await self._process_answer(PartitionKey(topic.topic_id, row.partition_index), row)
        if self._turns is not None and not any(
            row.records for topic in response.responses for row in topic.partitions
        ):
            self._pause_copy(self._turns)
        if self._pace is not None:
            copied_bytes, self._copied_bytes = self._copied_bytes, 0
            await asyncio.sleep(self._pace.pause_s(copied_bytes, asyncio.get_running_loop().time()))
        return True

    def _give_turn(self, turns: CopyTurns) -> None:
        """Let the next request contain the partition whose turn it is, and no other partition."""
        for key in (turns.current, turns.give(lambda key: self._position(key) is not None)):
            if key is not None:
                self._session.changed(key)

    def _pause_copy(self, turns: CopyTurns) -> None:
        """Leave out the partition of a request for some time, because the leader sent no records."""
        key = turns.current
        if key is None or self._session.sent(key) is None:
            return
        followed = self._followed[key]
        if followed.held is None:
            loop = asyncio.get_running_loop()
            followed.held = loop.call_later(THROTTLED_S, self._free, followed)

    def _requested_position(self, key: PartitionKey) -> FetchPosition | None:
        if self._turns is not None and key != self._turns.current:
            return None
        return self._position(key)

    def _position(self, key: PartitionKey) -> FetchPosition | None:
        followed = self._followed[key]
        if followed.held is not None:
            return None
        following = followed.partition.following
        if following.is_cutting:
            # Another fetcher has begun the truncation, before ``num.replica.fetchers`` was changed.
            loop = asyncio.get_running_loop()
            followed.held = loop.call_later(CUT_POLL_S, self._free, followed)
            return None
        try:
            position = following.position()
        except KafkaError:
            return None  # The replica is not a follower any more. The replica's host will remove it soon.
        if position.leader_id != self._leader_id:
            return None
        if not following.is_synced(position):
            self._begin_sync(followed)
            return None
        if not followed.is_caught_up and self._is_over_quota(followed.partition):
            loop = asyncio.get_running_loop()
            followed.held = loop.call_later(THROTTLED_S, self._free, followed)
            return None
        return position

    def _begin_sync(self, followed: "_Followed") -> None:
        """Leave a partition out of requests until its records are synced."""
        sync = self._hold(followed, partial(self._sync, followed.partition))
        self._syncs.add(sync)
        sync.add_done_callback(self._syncs.discard)

    async def _sync(self, partition: ClassicPartition) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await partition.following.synced()
        self._sync_s += (loop.time() - began_s - self._sync_s) / SYNCS_AVERAGED

    def _is_over_quota(self, partition: ClassicPartition) -> bool:
        quota, now_s = self._quota, asyncio.get_running_loop().time()
        return quota.is_throttled(partition.topic, partition.key.partition) and quota.is_exceeded(now_s)

    async def _process_answer(self, key: PartitionKey, row: PartitionData) -> None:
        """Process the leader's response for one partition."""
        await self._begin_append()
        followed, sent = self._followed.get(key), self._session.sent(key)
        if followed is None or sent is None or followed.held is not None:
            return
        partition = followed.partition
        if row.error_code is ErrorCode.offset_out_of_range:
            self._hold(followed, partial(self._start_again, partition, sent))
            return
        if row.error_code is ErrorCode.offset_moved_to_tiered_storage:
            self._hold(
                followed, partial(begin_behind_remote, self._ask, partition, sent, row.log_start_offset)
            )
            return
        if row.error_code is not ErrorCode.none:
            self._refused(followed, row.error_code.name)
            return
        try:
            await self._follow(followed, sent, row)
        except KafkaError as error:
            logger.warning("%s cannot append the fetched records: %s", _name(partition), error)
            self._back_off(followed)
        except Exception as error:
            self._unexpected.report("appending fetched records", error)
            self._back_off(followed)

    async def _follow(self, followed: "_Followed", sent: FetchPosition, row: PartitionData) -> None:
        partition = followed.partition
        key, following = partition.key, partition.following
        diverging = row.diverging_epoch
        if diverging.epoch != UNDEFINED or diverging.end_offset != UNDEFINED:
            logger.info(
                "%s: its log diverges from the log of broker %d, in which epoch %d ends at offset %d",
                _name(partition),
                self._leader_id,
                diverging.epoch,
                diverging.end_offset,
            )
            self._hold(
                followed,
                partial(truncate, self._ask, partition, sent, diverging.epoch, diverging.end_offset),
            )
            return
        if row.snapshot_id.epoch != UNDEFINED and partition.snapshots is not None:
            snapshot_id = LogPosition(row.snapshot_id.end_offset, row.snapshot_id.epoch)
            self._hold(
                followed, partial(self._begin_at_snapshot, partition, partition.snapshots, sent, snapshot_id)
            )
            return
        if following.position()._replace(log_start_offset=sent.log_start_offset) != sent:
            # The response belongs to a fetch from another position, because the partition was removed and
            # added again in the meantime. But if only retention has moved the start of this log, the response
            # counts. The leader does not send its high watermark and its log start again.
            self._session.changed(key)
            return
        records = row.records
        assert records is None or isinstance(records, bytes | memoryview)
        offsets = {"high_watermark": row.high_watermark, "log_start_offset": row.log_start_offset}
        if records and following.begins_inside(records):
            begin = partial(following.begin_with, sent.leader_epoch, bytes(records), **offsets)
            self._hold(followed, begin)
            return
        size_bytes = 0
        for part, cost in append_parts(records or b""):
            if size_bytes:
                await self._begin_append()
                if self._followed.get(key) is not followed:
                    return  # The partition is not followed any more, or was added again.
            size_bytes += self._count(
                partition, following.append(sent.leader_epoch, part, **offsets).size_bytes
            )
            self._turn_cost += cost
        followed.failures = followed.hurries = 0
        position = following.position()
        followed.is_caught_up = row.high_watermark <= position.offset
        if position != sent:
            self._session.changed(key)
        if size_bytes and not following.is_synced(position):
            self._begin_sync(followed)
        self._choose_connection(followed, size_bytes, row.high_watermark - position.offset)

    def _count(self, partition: ClassicPartition, size_bytes: int) -> int:
        """Count appended bytes. Returns their number."""
        self._brokers.fetched(size_bytes)
        if size_bytes and self._quota.is_throttled(partition.topic, partition.key.partition):
            self._quota.record(size_bytes, asyncio.get_running_loop().time())
        return size_bytes

    async def _begin_append(self) -> None:
        """End this iteration of the event loop first if it had enough appends."""
        if self._turn_cost >= TURN_COST:
            self._turn_cost = 0
            await asyncio.sleep(0)

    def _choose_connection(self, followed: "_Followed", size_bytes: int, distance: int) -> None:
        """Move a partition to the other kind of connection if that is necessary, after the append of records.
        Otherwise, count the bytes of a copy.
        ``distance`` is the number of committed records that the follower still lacks."""
        progress = followed.progress
        if progress is None:
            if not followed.is_caught_up and is_far_behind(size_bytes, self._settings.limits):
                self._move(followed.key)
            return
        if followed.is_caught_up:
            self._move(followed.key)
            return
        progress.copied(distance, asyncio.get_running_loop().time())
        if not progress.is_too_slow:
            self._copied_bytes += size_bytes

    async def _start_again(self, partition: ClassicPartition, sent: FetchPosition) -> None:
        """Handle a leader whose log does not contain the end of this log. If the leader's log begins after
        that end, drop this log and begin at the start of the leader's log. If the leader's log ends before
        that end, truncate this log at the end of the leader's log."""
        start = await self._offset(partition, sent, EARLIEST_TIMESTAMP)
        if start > sent.offset:
            logger.warning(
                "the log of %s ends at offset %d, and the log of broker %d begins at offset %d:"
                " the log starts again at that offset",
                _name(partition),
                sent.offset,
                self._leader_id,
                start,
            )
            await partition.following.start_over(sent.leader_epoch, start)
            return
        end = await self._offset(partition, sent, LATEST_TIMESTAMP)
        if end < sent.offset:
            await partition.following.truncate(sent.leader_epoch, UNDEFINED, end)

    async def _begin_at_snapshot(
        self,
        partition: ClassicPartition,
        log: SnapshotLog,
        sent: FetchPosition,
        snapshot_id: LogPosition,
    ) -> None:
        """Handle a leader whose log begins after the end of this log. Fetch the snapshot that contains the
        state of the missing records."""
        logger.info("%s fetches snapshot %s from broker %d", _name(partition), snapshot_id, self._leader_id)
        epoch = sent.leader_epoch
        download = SnapshotDownload(
            self._local_id, partition.topic, partition.key, epoch, snapshot_id, self._ask_for_snapshot
        )
        await download.run(log)
        await partition.following.begin_at_snapshot(epoch, snapshot_id)

    async def _ask_for_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        response: FetchSnapshotResponse = await self._ask(request, FETCH_SNAPSHOT_VERSION)
        return response

    async def _offset(self, partition: ClassicPartition, sent: FetchPosition, timestamp: int) -> int:
        return (await list_offset(self._ask, partition, sent, timestamp, self._local_id)).offset

    async def _ask(self, request: Message, version: int | None = None) -> Any:
        """Send a request that is not a fetch to the leader. ``version`` means the same as in
        :meth:`NodeConnection.ask`."""
        leader = self._leader()
        if leader is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {self._leader_id} is not known")
        return await leader.ask(request, self._settings.request_timeout_ms, version)

    def _leader(self) -> NodeConnection | None:
        address = self._brokers.address(self._leader_id)
        return None if address is None else NodeConnection(self._client, address)

    # -- partitions that are left out of requests -----------------------------------------------

    def _hold(self, followed: "_Followed", work: Work) -> asyncio.Task[None]:
        """Leave a partition out of requests until ``work`` on it is complete. Returns the task of the
        work."""
        self._session.changed(followed.key)
        task = followed.held = asyncio.get_running_loop().create_task(self._do(followed, work))
        return task

    async def _do(self, followed: "_Followed", work: Work) -> None:
        try:
            await work()
        except (KafkaError, IllegalMoveError) as error:
            self._refused(followed, str(error))
        except Exception as error:
            self._unexpected.report("truncating the log of a follower", error)
            self._back_off(followed)
        else:
            self._free(followed)
            # The request in progress does not contain the partition, and may wait at the leader. Until the
            # next request, the records of a new leader may not be committed. During syncs, requests end soon.
            if asyncio.current_task() not in self._syncs and followed.hurries < HURRIES_MAX:
                followed.hurries += 1
                self._ask_soon()

    def _refused(self, followed: "_Followed", reason: str) -> None:
        self._refusals.add(_name(followed.partition), reason)
        self._back_off(followed)

    def _back_off(self, followed: "_Followed") -> None:
        followed.failures += 1
        delay_s = self._backoff_ms(followed.failures) / 1000
        self._session.changed(followed.key)
        followed.held = asyncio.get_running_loop().call_later(delay_s, self._retry, followed)

    def _retry(self, followed: "_Followed") -> None:
        self._free(followed)
        if followed.failures <= HURRIES_MAX:
            self._ask_soon()

    def _backoff_ms(self, failures: int) -> int:
        return min(self._settings.backoff_ms, FIRST_BACKOFF_MS << min(failures - 1, 20))

    def _free(self, followed: "_Followed") -> None:
        followed.held = None
        self._session.changed(followed.key)
        self._wake.set()

    def _release(self, key: PartitionKey) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            followed.is_caught_up, followed.failures = False, 0
            held, followed.held = followed.held, None
            if held is not None:
                held.cancel()

    def _note_unreachable(self, error: KafkaError) -> None:
        self.problem = f"broker {self._leader_id}, which is followed, does not answer: {error}"
        if self._unreachable is not error.code:
            self._unreachable = error.code
            logger.info("%s", self.problem)


def _name(partition: ClassicPartition) -> str:
    return f"{partition.topic}-{partition.key.partition}"
