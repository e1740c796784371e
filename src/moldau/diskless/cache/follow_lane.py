"""Follows a coordinator for a set of partitions, in a loop: it finds, reads and appends batches.

There are two kinds of lanes (loops). The *tail* lane sends a request that waits at the coordinator until any
broker commits batches. After the response, it reads these batches immediately. The *catch-up* lane never
waits at the coordinator. It has its own budgets, so that a partition that is far behind does not slow other
partitions.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Protocol

from moldau.coordinators.diskless.calls import (
    BatchCoordinate,
    FindBatchesCall,
    FoundPartition,
)
from moldau.diskless.cache.lane_partition import FIRST_BACKOFF_S, MAX_BACKOFF_S, LanePartition
from moldau.diskless.cache.partition_cache import PartitionCache
from moldau.diskless.reading.object_reads import ObjectReads
from moldau.diskless.reading.read_meters import ReadMeters
from moldau.diskless.reading.read_round import ReadBatches, ReadRound
from moldau.objects.storage import ObjectNotFoundError, StorageError
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import ErrorCode, KafkaError, UnexpectedErrors

logger = logging.getLogger(__name__)

_EXPECTED: Final = (KafkaError, OSError)
_NEW_AT_A_TIME: Final = 16
_LOOK_AGAIN_S: Final = 0.02
_MANY: Final = 400
"""If the lane has at least this number of members, new members are added together, after a delay; see
:data:`_WAIT_A_MEMBER_S`."""
_WAIT_A_MEMBER_S: Final = 0.000_05
"""The lane waits for further new members for this time, multiplied by the number of members. The value is a
few times the cost of a request for one member's batches."""
MEMBERS_A_CALL: Final = 20_000
"""Maximum number of partitions in a request. A lane with more partitions sends several requests, one after
another. It divides its waiting time among these requests. A coordinator refuses calls of more than 95,000
partitions."""
MEMBERS_A_WAIT: Final = 100
"""A lane with a multiple of this number of members waits a multiple of the configured time. Otherwise
thousands of idle partitions would need a few percent of a core on each broker."""
LONGEST_WAIT: Final = 20
"""Maximum multiple of the configured time. With 500 ms, a lane waits at most 10 s. In this time, a cache does
not learn that records were deleted."""
ROWS_A_TURN: Final = 500
"""Number of partitions of a response that are processed in one iteration of the event loop. This takes some 5
ms."""
_ANSWER_S: Final = 0.25
"""If a coordinator has sent no response for this time, it counts as slow. Then the lane does not cancel a
request to this coordinator before the request has waited for this time."""


class BatchFinder(Protocol):
    """The part of a batch coordinator that readers need."""

    async def find_batches(self, call: FindBatchesCall) -> Sequence[FoundPartition]: ...


class LaneOwner(Protocol):
    """The owner of a lane. It interprets the coordinator's responses and appends batches."""

    async def apply_answer(self, cache: PartitionCache, found: FoundPartition, asked_end: int) -> bool:
        """Process the response for a partition. Returns False when its batches must not be read. The lane
        then sends a new request. The owner may also remove the partition from the lane.

        ``asked_end`` is the high watermark that was known when the request was sent.
        """
        ...

    def append(self, cache: PartitionCache, batches: ReadBatches) -> bool:
        """Append batches and wake readers. Returns False when the batches cannot be appended."""
        ...

    def mark_stuck(self, cache: PartitionCache) -> None:
        """Called when the next batch for the cache cannot be read, because its object no longer exists."""
        ...

    def round_over(self, cache: PartitionCache) -> None:
        """Called when all batches of a partition in a round were appended."""
        ...


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """The number of bytes that a lane reads in a round."""

    max_bytes: int
    """Maximum number of bytes in a round."""
    partition_max_bytes: int
    """Maximum number of bytes for a partition in a round, so that a large partition does not use the whole
    round."""
    first_max_bytes: int
    """Maximum lag in bytes of a new member. If the lag is larger, the missing records are skipped and not
    read."""
    max_wait_ms: int
    slow_round_ms: int = 200
    """Time after which the lane continues with the other partitions, although some partitions still wait for
    their bytes."""


class FollowLane:
    """The loop of a lane. ``Cacher`` runs :meth:`run` as a task."""

    def __init__(
        self,
        name: str,
        finder: BatchFinder,
        reads: ObjectReads,
        follower: LaneOwner,
        settings: LaneSettings,
        meters: ReadMeters,
        unexpected: UnexpectedErrors,
    ) -> None:
        self.name = name
        self._finder = finder
        self._reads = reads
        self._follower = follower
        self._settings = settings
        self._meters = meters
        self._unexpected = unexpected
        self._members: dict[PartitionKey, LanePartition] = {}
        self._additions: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._slow: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._failures = 0
        self._resumed = asyncio.Event()
        self._nudge: asyncio.TimerHandle | None = None
        self._finding: asyncio.Future[Sequence[FoundPartition]] | None = None
        self._asked_at = self._answered_at = 0.0

    @property
    def busy_count(self) -> int:
        """Number of members for which bytes are being read."""
        return sum(member.is_busy for member in self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def add(self, cache: PartitionCache) -> None:
        self._members[cache.partition_id] = LanePartition(cache)
        if len(self._members) < _MANY and (self._finding is None or not self._is_awaited()):
            self._changed.set()
        elif self._additions is None:
            # Each addition replaces the request in progress. When a broker with thousands of partitions
            # starts, there are many additions. If each of them took effect at once, no request would get a
            # response, and each request would name all partitions. Therefore many additions take effect
            # together, after a delay. The same happens if the coordinator is slow.
            delay_s = _ANSWER_S if len(self._members) < _MANY else len(self._members) * _WAIT_A_MEMBER_S
            self._additions = asyncio.get_running_loop().call_later(delay_s, self._look_at_additions)

    def remove(self, cache: PartitionCache) -> bool:
        """Remove a partition from the lane. Returns False when it was not in the lane."""
        if self._members.pop(cache.partition_id, None) is None:
            return False
        self._changed.set()
        return True

    def is_reading(self, cache: PartitionCache) -> bool:
        """Whether batches of the partition are being read for its cache."""
        member = self._members.get(cache.partition_id)
        return member is not None and member.is_busy

    def resume(self) -> None:
        """If the lane pauses after failures, let it continue, because the coordinator has moved to another
        broker.
        """
        self._failures = 0
        self._resumed.set()
        if self._finding is not None and asyncio.get_running_loop().time() - self._asked_at > _ANSWER_S:
            self._finding.cancel()

    def postpone(self) -> None:
        """Postpone requests for a cache to which this broker's own commits are promised.

        The coordinator would respond to the request in progress with exactly these batches, although this
        broker has them already.
        """
        self.request_again()
        if self._finding is not None and not self._is_awaited():
            self._finding.cancel()

    def request_again(self) -> None:
        """After a short delay, request batches again, for all caches to which no own commits are promised.

        The delay is needed because own commits often follow one another. Without the delay, each request
        would return promised batches again.
        """
        if self._nudge is None:
            self._nudge = asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._renew_request)

    def _look_at_additions(self) -> None:
        self._additions = None
        self._changed.set()

    def _renew_request(self) -> None:
        self._nudge = None
        if self._finding is None or not self._is_awaited():
            self._changed.set()

    def _is_awaited(self) -> bool:
        """Whether the request in progress must continue. This is the case if the lane has had no response for
        some time, and the request itself has not waited for this time yet. Otherwise requests would be
        postponed again and again, and no request to a distant coordinator would get a response."""
        now = asyncio.get_running_loop().time()
        return now - self._answered_at > _ANSWER_S > now - self._asked_at

    async def run(self) -> None:
        """Run until the task is cancelled."""
        try:
            while True:
                self._changed.clear()
                members = self._ready() if self._nudge is None else ()
                if not members:
                    await self._changed.wait()
                    continue
                try:
                    found = await self._find(members)
                    self._failures = 0
                    if found is not None:
                        await self._process(found)
                except _EXPECTED as error:
                    await self._pause(error)
                except Exception as error:
                    self._unexpected.report("following a coordinator", error)
                    await self._pause(None)
        finally:
            for timer in (self._nudge, self._additions):
                if timer is not None:
                    timer.cancel()
            slow = list(self._slow)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    def _ready(self) -> list[LanePartition]:
        """The members for which batches are requested now. Each call starts with another member."""
        ready = [member for member in self._members.values() if member.may_be_asked_for]
        self._turn += 1 if len(ready) <= MEMBERS_A_CALL else MEMBERS_A_CALL
        start = self._turn % len(ready) if ready else 0
        turned = ready[start:] + ready[:start]
        # New members are requested separately, because the response must contain all batches that they do not
        # have yet.
        new = [member for member in turned if member.cache.must_begin]
        return new[:_NEW_AT_A_TIME] or turned[:MEMBERS_A_CALL]

    async def _find(self, members: Sequence[LanePartition]) -> Sequence[FoundPartition] | None:
        """Send a request to the coordinator. Returns ``None`` when the set of members has changed in the
        meantime."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        are_new = members[0].cache.must_begin
        partition_max_bytes = settings.first_max_bytes if are_new else settings.partition_max_bytes
        call = FindBatchesCall(
            [member.ask(partition_max_bytes) for member in members],
            max_bytes=partition_max_bytes * len(members) if are_new else settings.max_bytes,
            min_bytes=0 if are_new else 1,
            max_wait_ms=0 if are_new else self._wait_ms(len(members)),
        )
        begin = self._asked_at = loop.time()
        finding = self._finding = asyncio.ensure_future(self._finder.find_batches(call))
        changing = asyncio.ensure_future(self._changed.wait())
        # A request that does not wait at the coordinator ends soon, so it is not replaced. Otherwise
        # partitions that clients begin to read, one after the other, could replace each request before its
        # response.
        ends = (finding, changing) if call.max_wait_ms else (finding,)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not finding.done() or finding.cancelled():
                return None
            found = finding.result()
            self._answered_at = loop.time()
        finally:
            self._finding = None
            changing.cancel()
            finding.cancel()
            await asyncio.gather(changing, finding, return_exceptions=True)
        if not call.max_wait_ms and any(partition.batches for partition in found):
            self._meters.find_time_ms.update((loop.time() - begin) * 1000)
        return found

    def _wait_ms(self, asked_count: int) -> int:
        """The time for which a coordinator may wait for new batches before it responds. The coordinator
        responds at once when a partition of the request has new batches."""
        count, wait_ms = len(self._members), self._settings.max_wait_ms
        if count > MEMBERS_A_CALL:
            return wait_ms // ceil(count / MEMBERS_A_CALL)
        if asked_count < count:
            # A member that the request leaves out may have to wait for the next request; see
            # :meth:`_renew_request`.
            return wait_ms
        return wait_ms * min(LONGEST_WAIT, max(1, count // MEMBERS_A_WAIT))

    async def _process(self, found: Sequence[FoundPartition]) -> None:
        wanted: list[tuple[LanePartition, Sequence[BatchCoordinate]]] = []
        starved: list[LanePartition] = []
        left_bytes = self._settings.max_bytes
        for number, partition in enumerate(found, 1):
            if not number % ROWS_A_TURN:
                await asyncio.sleep(0)
            key = PartitionKey(partition.topic_id, partition.partition_index)
            member = self._members.get(key)
            if member is None or member.is_busy or member.cache.is_closed or member.cache.is_promised:
                continue
            if not self._is_answer(member, partition):
                continue
            local_end = member.cache.local_end_offset
            if member.asked is None or local_end != member.asked.offset:
                found_still = _still_news(partition, local_end)
                if found_still is None:
                    continue
                partition = found_still
            is_fit = False
            with self._unexpected.contained("processing the response of a coordinator"):
                try:
                    is_fit = await self._follower.apply_answer(member.cache, partition, member.asked_end)
                except _EXPECTED as error:
                    # The batches of the other partitions must still be read.
                    if not member.backoff_s:
                        topic, index = member.cache.topic, member.cache.key.partition
                        logger.warning("%s-%d cannot be followed: %s", topic, index, error)
            if self._members.get(key) is not member:
                continue
            if not is_fit:
                # Try again after a pause. The pause becomes longer with each failure, so that a response that
                # never matches does not cause a busy loop.
                self._retry_later(member)
                continue
            batches = partition.batches if member.cache.is_usable else ()
            some = _within(batches, min(left_bytes, self._settings.partition_max_bytes), bool(wanted))
            if some:
                left_bytes -= sum(batch.size_bytes for batch in some)
                wanted.append((member, some))
            elif member.cache.is_caught_up:
                member.backoff_s = 0.0
                self._follower.round_over(member.cache)
            else:
                starved.append(member)
        if wanted:
            await self._read(wanted)
        else:
            for member in starved:
                self._retry_later(member)

    def _is_answer(self, member: LanePartition, found: FoundPartition) -> bool:
        if found.error in (ErrorCode.none, ErrorCode.offset_out_of_range):
            return True
        self._retry_later(member)
        return False

    async def _read(self, wanted: list[tuple[LanePartition, Sequence[BatchCoordinate]]]) -> None:
        # While the lane waited for the response, this broker's own batches may have been promised to some of
        # the caches. These caches are left out.
        wanted = [(member, some) for member, some in wanted if not member.cache.is_promised]
        members = [member for member, _ in wanted]

        def deliver(number: int, batches: ReadBatches) -> None:
            member, is_taken = members[number], False
            # An error in one partition's batches must not delay other batches of the same read.
            with self._unexpected.contained("caching batches"):
                is_taken = not member.cache.is_closed and self._follower.append(member.cache, batches)
            if not is_taken:
                read_round.give_up(number)
                self._retry_later(member)

        def fail(number: int, error: StorageError) -> None:
            self._read_failed(members[number], error)

        read_round = ReadRound(self._reads, [batches for _, batches in wanted], deliver, fail)
        self._meters.rounds.value += 1
        self._meters.round_bytes.update(sum(batch.size_bytes for _, some in wanted for batch in some))
        for member in members:
            member.reading = read_round
        task = asyncio.get_running_loop().create_task(self._finish(read_round, members))
        # The task is registered at once. If the lane ends before the task, the lane must also cancel the
        # task.
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)
        await asyncio.wait([task], timeout=self._settings.slow_round_ms / 1000)
        if task.done():
            task.result()
            return
        self._unexpected.watch(task, "reading batches of a slow object")
        for number, member in enumerate(members):
            if read_round.is_over(number):
                self._over(member, read_round)

    async def _finish(self, read_round: ReadRound, members: list[LanePartition]) -> None:
        left = iter(members)
        try:
            await read_round.run()
            for number, member in enumerate(left, 1):
                self._over(member, read_round)
                if not number % ROWS_A_TURN:
                    await asyncio.sleep(0)
        finally:
            self._meters.gets_per_round.update(read_round.gets)
            for member in left:
                self._over(member, read_round)

    def _over(self, member: LanePartition, read_round: ReadRound) -> None:
        """End a round for a partition, so that its batches may be requested again. Nothing happens if this
        round has ended for the partition before."""
        if member.reading is not read_round:
            return
        member.reading = None
        if not member.is_resting:
            member.backoff_s = 0.0
        if self._members.get(member.cache.partition_id) is member:
            self._changed.set()
            self._follower.round_over(member.cache)

    def _read_failed(self, member: LanePartition, error: StorageError) -> None:
        if isinstance(error, ObjectNotFoundError):
            # There are two possible causes. The batches may have moved to the tier or been deleted; the
            # coordinator will then report this. Or the store has lost the object; then readers get an error.
            self._meters.lost_objects.value += 1
            self._follower.mark_stuck(member.cache)
        logger.warning(
            "cannot read batches of %s-%d: %s", member.cache.topic, member.cache.key.partition, error
        )
        self._retry_later(member)

    def _retry_later(self, member: LanePartition) -> None:
        if not member.is_resting:
            # ``is_resting`` is a flag and not a time, because a timer may fire slightly early.
            asyncio.get_running_loop().call_later(member.back_off(), self._rested, member)

    def _rested(self, member: LanePartition) -> None:
        member.is_resting = False
        self._changed.set()

    async def _pause(self, error: Exception | None) -> None:
        """Wait after a failure of the coordinator. The wait becomes longer with each failure, up to a
        maximum."""
        self._failures += 1
        if error is not None and self._failures in (1, 10, 100):
            logger.warning("the diskless coordinator cannot be followed: %s", error)
        self._resumed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures, 10))):
                await self._resumed.wait()


def _still_news(found: FoundPartition, local_end: int) -> FoundPartition | None:
    """The response without the batches that were cached after the request was sent. ``None`` if the response
    has an error, or if no batch of the response begins at ``local_end``."""
    if found.error is not ErrorCode.none or found.moved_to_tier:
        return None
    batches = [batch for batch in found.batches if batch.base_offset >= local_end]
    return found._replace(batches=batches) if batches and batches[0].base_offset == local_end else None


def _within(
    batches: Sequence[BatchCoordinate], max_bytes: int, others_have_some: bool
) -> Sequence[BatchCoordinate]:
    """The first batches within the limit. If no other partition has batches, the first batch is returned even
    if it is larger than the limit, so that a large batch does not block its partition.
    """
    size_bytes = 0
    for count, batch in enumerate(batches):
        size_bytes += batch.size_bytes
        if size_bytes > max_bytes and (count or others_have_some):
            return batches[:count]
    return batches
