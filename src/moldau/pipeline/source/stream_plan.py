"""The planning of streaming queries, which is the same under every version of Spark.

A batch is a range of offsets of each partition. The range is fixed before it is read, so a repeated batch has
the same records. No state is stored in topics or consumer groups, because the checkpoint has a query's
position.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition

from moldau.client.cluster import Client
from moldau.client.errors import ToolError
from moldau.pipeline.reading.broker import UNKNOWN_TOPIC
from moldau.pipeline.reading.planning import OffsetRange
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.source.options import SourceOptions, check_streaming
from moldau.pipeline.source.snapshot import (
    ChosenTopic,
    TopicRanges,
    end_offsets,
    find_topics,
    first_offsets,
    source_of,
    starting_offsets,
)
from moldau.pipeline.source.stream_offsets import StreamOffsets, StreamPlace, limited
from moldau.pipeline.source.units import ask, plan
from moldau.runtime.errors import KafkaError

logger = logging.getLogger(__name__)


class StreamPlanner:
    """Plans the batches of a query."""

    def __init__(
        self,
        options: SourceOptions,
        monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251 - Spark's process has no event loop
    ) -> None:
        check_streaming(options)
        self._options = options
        self._monotonic = monotonic
        self._sources: dict[str, TopicSource] = {}
        self._triggered_s: float | None = None
        """Time of the last planned batch."""

    @property
    def limit(self) -> int | None:
        """Maximum number of offsets of a batch."""
        return self._options.max_offsets_per_trigger

    def initial(self) -> StreamOffsets:
        """The start of a query without a checkpoint."""
        found: StreamOffsets = self._asked(
            lambda client: self._everywhere(client, self._starting, may_be_absent=False)
        )
        return found

    def latest(self) -> StreamOffsets:
        """The current ends of the topics."""
        found: StreamOffsets = self._asked(lambda client: self._everywhere(client, self._ends))
        return found

    def end_of_batch(
        self, before: StreamOffsets, ends: StreamOffsets, records_max: int | None, *, may_wait: bool = True
    ) -> StreamOffsets:
        """The end of the next batch. It is ``before`` if the query must wait for more records."""
        added = {place for place in ends.offsets if place not in before.offsets}
        renewed = {place for place in ends.offsets if not before.same_topic(ends, place.topic)}
        firsts = self._firsts(added | renewed)
        begins = {place: firsts.get(place, before.offsets.get(place, 0)) for place in ends.offsets}
        self.check_gone(before, ends)
        if may_wait and self._waits(sum(max(0, end - begins[at]) for at, end in ends.offsets.items())):
            return before
        return StreamOffsets(limited(begins, ends.offsets, records_max), ends.topic_ids)

    def _waits(self, available: int) -> bool:
        """Whether there are fewer records than the minimum of a batch, and not enough time has passed since
        the last batch."""
        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        now_s = self._monotonic()
        is_due = self._triggered_s is None or now_s - self._triggered_s >= self._options.max_trigger_delay_s
        if not is_due and available < least:
            return True
        self._triggered_s = now_s
        return False

    def check_gone(self, before: StreamOffsets, after: StreamOffsets) -> None:
        """Report a data loss if partitions that the query has read do not exist any more."""
        gone = [place for place in before.offsets if place not in after.offsets]
        if gone:
            self._lost(f"partitions that do not exist any more: {_names(gone)}")

    def partitions(self, before: StreamOffsets, after: StreamOffsets) -> list[InputPartition]:
        """The units of a batch."""
        moved = {
            place: offset
            for place, offset in after.offsets.items()
            if offset != before.offsets.get(place) or not before.same_topic(after, place.topic)
        }
        firsts = self._firsts(set(moved))
        by_topic: dict[str, list[OffsetRange]] = {}
        for place, stop in moved.items():
            wanted = self._range(place, before, after, stop, firsts.get(place))
            if wanted is not None and wanted.end > wanted.start:
                by_topic.setdefault(place.topic, []).append(wanted)
        topics = []
        for name, ranges in by_topic.items():
            source = self._source(name, after.topic_ids[name], ranges)
            if source is not None:
                topics.append(TopicRanges(source, tuple(ranges)))
        return plan(topics, self._options.min_partitions, self._options.max_records_per_partition)

    def _range(
        self, place: StreamPlace, before: StreamOffsets, after: StreamOffsets, stop: int, first: int | None
    ) -> OffsetRange | None:
        """The range of a partition in a batch. Raises :class:`ToolError` for lost offsets, unless the options
        allow a loss."""
        name = f"{place.topic}-{place.partition}"
        if first is None:
            self._lost(f"partition that does not exist any more: {name}")
            return None
        if not before.same_topic(after, place.topic):
            self._lost(f"topic {place.topic} was deleted and created again")
            return OffsetRange(place.partition, first, stop)
        start = before.offsets.get(place)
        if start is None:
            if first > 0:
                self._lost(f"{name} is new, and its first {first} offsets were deleted already")
            return OffsetRange(place.partition, first, stop)
        if stop < start:
            self._lost(f"{name} ends at offset {stop}, but {start} offsets of it were read")
            return None
        if start < first:
            self._lost(f"{name}: offsets {start} to {first - 1} were deleted before they were read")
            start = first
        return OffsetRange(place.partition, min(start, stop), stop)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise ToolError(f"{what} (failOnDataLoss=false skips these records)")
        logger.warning("data was lost: %s", what)

    def _source(self, name: str, topic_id: str, ranges: list[OffsetRange]) -> TopicSource | None:
        """Access to the topic. ``None`` if the topic was deleted after its end was determined."""
        known = self._sources.get(name)
        owners = known.wal.coordinators if known is not None and known.wal is not None else None
        fresh = known is not None and known.topic_id == topic_id
        if (
            known is None
            or not fresh
            or (owners is not None and any(r.partition not in owners for r in ranges))
        ):
            known = self._asked(lambda client: self._look_up(client, name))
            if known is None:
                self._lost(f"topic {name} was deleted")
                return None
            self._sources[name] = known
        if known.topic_id != topic_id:
            self._lost(f"topic {name} was deleted and created again")
            return None
        return known

    async def _look_up(self, client: Client, name: str) -> TopicSource | None:
        try:
            return await source_of(client, self._options, await client.topic(name))
        except KafkaError as error:
            if error.code not in UNKNOWN_TOPIC:
                raise
            return None

    # -- offsets --------------------------------------------------------------------------------

    async def _ends(self, client: Client, found: ChosenTopic) -> Mapping[int, int]:
        return await end_offsets(client, self._options, found)

    async def _starting(self, client: Client, found: ChosenTopic) -> Mapping[int, int]:
        return await starting_offsets(client, self._options, found)

    def _firsts(self, places: set[StreamPlace]) -> dict[StreamPlace, int]:
        """First offsets of ``places``. Partitions of topics that do not exist any more are left out."""
        if not places:
            return {}

        async def find_firsts(client: Client, found: ChosenTopic) -> Mapping[int, int]:
            wanted = [part for part in found.partitions if StreamPlace(found.topic.name, part) in places]
            return await first_offsets(client, ChosenTopic(found.topic, wanted)) if wanted else {}

        firsts: StreamOffsets = self._asked(lambda client: self._everywhere(client, find_firsts))
        return dict(firsts.offsets)

    async def _everywhere(
        self, client: Client, look: Callable[[Client, ChosenTopic], Any], *, may_be_absent: bool = True
    ) -> StreamOffsets:
        """The offsets of all topics. Topics that were deleted since the query began are skipped."""
        offsets: dict[StreamPlace, int] = {}
        ids: dict[str, str] = {}
        for found in await find_topics(client, self._options, may_be_absent=may_be_absent):
            name = found.topic.name
            try:
                seen = await look(client, found)
            except KafkaError as error:
                if may_be_absent and error.code in UNKNOWN_TOPIC:
                    continue
                raise
            ids[name] = str(found.topic.topic_id)
            offsets.update((StreamPlace(name, partition), offset) for partition, offset in seen.items())
        return StreamOffsets(offsets, ids)

    def _asked(self, look: Callable[[Client], Any]) -> Any:
        return ask(self._options.bootstrap, look, self._options.request_timeout_s)


def _names(places: Iterable[StreamPlace]) -> str:
    return ", ".join(f"{place.topic}-{place.partition}" for place in sorted(places))
