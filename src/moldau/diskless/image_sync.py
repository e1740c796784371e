"""Creates and deletes topics in coordinators, following the cluster's metadata.

A topic is first created or deleted in the metadata, durably. Then the broker that leads a partition's
coordinator updates the coordinator. It repeats the update until the update succeeds. A topic id is never
reused, so a repeated creation or deletion has no effect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from typing import Final, Protocol
from uuid import UUID

from moldau.cluster.decisions.kinds.diskless import DISKLESS
from moldau.cluster.image.topics_image import Topic
from moldau.coordinators.diskless.calls import PartitionsToCreate, TopicResult
from moldau.runtime import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

_TOPICS_A_CALL: Final = 100
_PARTITIONS_A_CALL: Final = 1_000
"""Limit for the partitions that one call creates. The coordinator replays their records in one iteration of
the event loop, and writes them to its database in another iteration. Each of these steps takes some 10 ms."""
_UNKNOWN_TOPIC_GRACE_S: Final = 30.0
"""Grace period for a topic that the coordinator has but this broker's metadata do not contain. Perhaps the
metadata are older than the topic."""


class TopicKeeper(Protocol):
    """The topics of the coordinators that this broker leads."""

    @property
    def coordinator_ids(self) -> list[int]: ...

    def is_active(self, coordinator_id: int) -> bool: ...

    async def create_partitions(
        self, coordinator_id: int, topics: Sequence[PartitionsToCreate]
    ) -> Sequence[TopicResult]: ...

    async def delete_topics(
        self, coordinator_id: int, topic_ids: Sequence[UUID]
    ) -> Sequence[TopicResult]: ...

    async def topic_ids(self, coordinator_id: int) -> Set[UUID]: ...


class ImageSync:
    """:meth:`run_once` makes the pending changes. Call it after notifications, and regularly."""

    def __init__(
        self,
        keeper: TopicKeeper,
        topics: Callable[[], Iterable[Topic]],
        until_current: Callable[[], Awaitable[None]],
        deletions_are_held: Callable[[], bool] = lambda: False,
    ) -> None:
        """``topics`` returns all topics of this broker's metadata.

        ``until_current`` waits until the metadata contain everything that was committed at the time of the
        call. It raises ``KafkaError`` or ``TimeoutError``. While ``deletions_are_held`` is true, a topic that
        the metadata do not contain is not deleted.
        """
        self._keeper = keeper
        self._deletions_are_held = deletions_are_held
        self._until_current = until_current
        self._topics = topics
        self._changed: dict[UUID, Topic] = {}
        self._removed: dict[UUID, set[int]] = {}
        self._agreed: set[int] = set()
        """Coordinators that were compared with the whole metadata in their current term on this broker."""
        self._unknown_topics: dict[tuple[int, UUID], float] = {}
        self._next_check_s: dict[int, float] = {}

    def topics_changed(self, changed: Iterable[Topic], removed: Iterable[Topic]) -> bool:
        """Store the changed and removed topics of the metadata. Returns whether :meth:`run_once` has pending
        changes."""
        for topic in changed:
            if DISKLESS.is_kind_of(topic):
                self._changed[topic.topic_id] = topic
        for topic in removed:
            if DISKLESS.is_kind_of(topic):
                self._changed.pop(topic.topic_id, None)
                owners = {partition.owner for partition in topic.partitions}
                self._removed.setdefault(topic.topic_id, set()).update(owners)
        return bool(self._changed or self._removed)

    def no_longer_leads(self, coordinator_id: int) -> None:
        """Drop the state of a coordinator that another broker leads now. If this broker leads the coordinator
        again later, all topics are compared again."""
        self._agreed.discard(coordinator_id)
        self._next_check_s.pop(coordinator_id, None)

    async def run_once(self) -> None:
        """Make the coordinators that this broker leads agree with the metadata. Raises ``KafkaError`` when a
        call failed. The caller must then run it again."""
        led = self._keeper.coordinator_ids
        active = [coordinator_id for coordinator_id in led if self._keeper.is_active(coordinator_id)]
        loading = set(led).difference(active)
        # A coordinator that is being loaded again is skipped. After this run, all pending changes are
        # dropped, including the changes that the skipped coordinator has not made. Therefore a skipped
        # coordinator is later compared with the whole metadata.
        self._agreed.intersection_update(active)
        changed, self._changed = self._changed, {}
        removed, self._removed = self._removed, {}
        try:
            for coordinator_id in active:
                if coordinator_id in self._agreed:
                    await self._create(coordinator_id, changed.values())
                else:
                    await self._create(coordinator_id, self._topics())
                    self._agreed.add(coordinator_id)
                gone = [topic_id for topic_id, owners in removed.items() if coordinator_id in owners]
                await self._delete(coordinator_id, gone)
                await self._delete_unknown_topics(coordinator_id)
        except BaseException:
            self._changed = {**changed, **self._changed}
            for topic_id, owners in removed.items():
                self._removed.setdefault(topic_id, set()).update(owners)
            raise
        if loading:
            for topic_id, owners in removed.items():
                if skipped := owners & loading:
                    self._removed.setdefault(topic_id, set()).update(skipped)
            raise KafkaError(ErrorCode.coordinator_load_in_progress, "a coordinator is being loaded")

    async def _create(self, coordinator_id: int, topics: Iterable[Topic]) -> None:
        wanted = []
        for topic in topics:
            indexes = [
                index for index, partition in enumerate(topic.partitions) if partition.owner == coordinator_id
            ]
            for start in range(0, len(indexes), _PARTITIONS_A_CALL):
                some = indexes[start : start + _PARTITIONS_A_CALL]
                wanted.append(PartitionsToCreate(topic.topic_id, topic.name, some))
        for call in _calls(wanted):
            _raise_first(await self._keeper.create_partitions(coordinator_id, call))

    async def _delete(self, coordinator_id: int, topic_ids: Sequence[UUID]) -> None:
        for start in range(0, len(topic_ids), _TOPICS_A_CALL):
            some = topic_ids[start : start + _TOPICS_A_CALL]
            _raise_first(await self._keeper.delete_topics(coordinator_id, some))

    async def _delete_unknown_topics(self, coordinator_id: int) -> None:
        """Delete topics whose removal this broker did not see, because another broker led the coordinator at
        that time."""
        now_s = asyncio.get_running_loop().time()
        if self._deletions_are_held() or now_s < self._next_check_s.get(coordinator_id, 0.0):
            return
        self._next_check_s[coordinator_id] = now_s + _UNKNOWN_TOPIC_GRACE_S
        known = {topic.topic_id for topic in self._topics()}
        here = await self._keeper.topic_ids(coordinator_id)
        gone = []
        for topic_id in here - known:
            since_s = self._unknown_topics.setdefault((coordinator_id, topic_id), now_s)
            if now_s - since_s >= _UNKNOWN_TOPIC_GRACE_S:
                gone.append(topic_id)
        for found in [found for found in self._unknown_topics if found[0] == coordinator_id]:
            if found[1] in known or found[1] not in here:
                del self._unknown_topics[found]
        if gone:
            # The coordinator has these topics from committed records. If the metadata contain all records up
            # to that commit but not the topic, the topic was deleted. If the metadata do not contain all
            # these records yet, nothing can be concluded.
            await self._until_current()
            now_known = {topic.topic_id for topic in self._topics()}
            gone = [topic_id for topic_id in gone if topic_id not in now_known]
        if gone:
            logger.info(
                "coordinator %d: %d topics are not in the metadata any more", coordinator_id, len(gone)
            )
            await self._delete(coordinator_id, sorted(gone))


def _calls(wanted: Iterable[PartitionsToCreate]) -> Iterator[list[PartitionsToCreate]]:
    """Divide creations into calls with a limited number of topics and partitions."""
    call: list[PartitionsToCreate] = []
    count = 0
    for each in wanted:
        count += len(each.partition_indexes)
        if call and (len(call) == _TOPICS_A_CALL or count > _PARTITIONS_A_CALL):
            yield call
            call, count = [], len(each.partition_indexes)
        call.append(each)
    if call:
        yield call


def _raise_first(results: Sequence[TopicResult]) -> None:
    for result in results:
        if result.error is not ErrorCode.none:
            raise KafkaError(result.error, result.message)
