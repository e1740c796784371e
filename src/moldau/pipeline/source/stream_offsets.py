"""Offsets of a streaming query, which Spark stores in its checkpoint, and the limits of a batch. Pure.

Their JSON is similar to that of the Kafka connector, ``{"orders": {"0": 12, "1": 7}}``. It also has the
topics' ids. If a topic was deleted and created again, the id shows that it is not the old topic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from moldau.client.errors import ToolError

IDS: Final = "@topicIds"
"""The member of the JSON that contains the ids. No topic can have this name."""


class StreamPlace(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset of each partition, and the topics' ids."""

    offsets: Mapping[StreamPlace, int]
    topic_ids: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place, offset in sorted(self.offsets.items()):
            found.setdefault(place.topic, {})[str(place.partition)] = offset
        return {**found, IDS: dict(sorted(self.topic_ids.items()))}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "StreamOffsets":
        """Parse offsets. Raises :class:`ToolError` for a text that is not an offset of Moldau."""
        try:
            offsets = {
                StreamPlace(topic, int(partition)): int(offset)
                for topic, rows in content.items()
                if topic != IDS
                for partition, offset in rows.items()
            }
            return StreamOffsets(offsets, {str(key): str(value) for key, value in content[IDS].items()})
        except (TypeError, ValueError, AttributeError, KeyError):
            raise ToolError(f"these are no offsets of format('moldau'): {content!r}") from None

    def same_topic(self, other: "StreamOffsets", topic: str) -> bool:
        """Whether a topic has the same id in these offsets and in ``other``. The result is True if one of
        them does not contain the topic."""
        ids = (self.topic_ids.get(topic), other.topic_ids.get(topic))
        return None in ids or ids[0] == ids[1]


def limited(
    begins: Mapping[StreamPlace, int], ends: Mapping[StreamPlace, int], records_max: int | None
) -> dict[StreamPlace, int]:
    """The end of a batch of at most ``records_max`` offsets. Each partition gets a share in proportion to its
    number of offsets.

    ``begins`` must have every partition of ``ends``. The offset of a partition never moves back.
    """
    left = {place: max(0, end - begins[place]) for place, end in ends.items()}
    total = sum(left.values())
    if records_max is None or total <= records_max:
        return {place: begins[place] + count for place, count in left.items()}
    shares = {place: count * records_max // total for place, count in left.items()}
    # The shares are rounded down, so some offsets are not assigned yet. The partitions whose shares were
    # rounded down most get one more offset. A batch is therefore never empty.
    by_loss = sorted(left, key=lambda place: -(left[place] * records_max % total))
    for place in by_loss[: records_max - sum(shares.values())]:
        shares[place] += 1
    return {place: begins[place] + share for place, share in shares.items()}
