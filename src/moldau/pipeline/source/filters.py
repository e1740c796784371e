"""The part of the data that a query reads. It is limited by topic, partition, offset and timestamp. Pure."""

from dataclasses import dataclass

from moldau.pipeline.reading.planning import OffsetRange


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """A range of integers from ``start`` to below ``end``; ``None`` means no limit."""

    start: int | None = None
    end: int | None = None

    def narrowed(self, start: int | None, end: int | None) -> "NumberBounds":
        starts = [one for one in (self.start, start) if one is not None]
        ends = [one for one in (self.end, end) if one is not None]
        return NumberBounds(max(starts, default=None), min(ends, default=None))

    def __contains__(self, number: int) -> bool:
        return (self.start is None or number >= self.start) and (self.end is None or number < self.end)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The topics, partitions, offsets and times that pass a query's filters."""

    topics: frozenset[str] | None = None
    partition: NumberBounds = NumberBounds()
    partitions: frozenset[int] | None = None
    offset: NumberBounds = NumberBounds()
    timestamp_us: NumberBounds = NumberBounds()
    """The range of timestamps that pass the filters, in microseconds since the epoch."""

    def matches(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and partition in self.partition
        )

    def cut(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range whose offsets pass the filters. It may be empty."""
        start = max(wanted.start, self.offset.start if self.offset.start is not None else wanted.start)
        end = min(wanted.end, self.offset.end if self.offset.end is not None else wanted.end)
        return OffsetRange(wanted.partition, start, max(start, end))

    @property
    def earliest_ms(self) -> int | None:
        """The earliest timestamp that passes the filters, in milliseconds since the epoch; ``None`` if there
        is no such limit."""
        start = self.timestamp_us.start
        return None if start is None or start <= 0 else -(-start // 1000)
