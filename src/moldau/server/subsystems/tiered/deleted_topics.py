"""Finds out why a topic is missing in this broker's metadata. Either the topic was deleted, or the metadata
do not contain the topic yet (docs/decisions/0016)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from uuid import UUID

from moldau.cluster.image.image import MetadataImage


class DeletedTopics:
    """Finds deleted topics. A topic counts as deleted if it is missing in the image for a grace period, and
    is then also missing in an image that has all committed records."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        until_current: Callable[[], Awaitable[None]],
        grace_s: float,
        look_again: Callable[[], None],
    ) -> None:
        """``until_current`` waits until the image contains all records that were committed at the time of the
        call. If this fails, it raises an exception.

        ``grace_s`` is the time for which a topic must be missing in the image before the check. A controller
        that was replaced may continue for some time, because it does not know yet that it was replaced. The
        grace period must be longer than this time. ``look_again`` is called when a grace period is over.
        """
        self._image = image
        self._until_current = until_current
        self._grace_s = grace_s
        self._look_again = look_again
        self._missing_since_s: dict[UUID, float] = {}

    async def among(self, topic_ids: Collection[UUID]) -> set[UUID]:
        """The deleted topics among ``topic_ids``. Each of these topics must have existed at some time.

        Raises ``KafkaError`` or ``TimeoutError`` while the result is unknown.
        """
        loop = asyncio.get_running_loop()
        missing = self._missing(topic_ids)
        since_s = {each: self._missing_since_s.get(each, loop.time()) for each in missing}
        self._missing_since_s = since_s
        due = {each for each in missing if loop.time() - since_s[each] >= self._grace_s}
        if len(due) < len(missing):
            loop.call_later(self._grace_s, self._look_again)
        if not due:
            return due
        # The creation of these topics is committed. If a topic is missing in current metadata, its deletion
        # is committed, too.
        await self._until_current()
        return self._missing(due)

    def _missing(self, topic_ids: Collection[UUID]) -> set[UUID]:
        topics = self._image().topics
        return {each for each in topic_ids if topics.get_by_id(each) is None}
