"""Decides which reported changes of leadership take effect. Coordinators of all kinds are loaded and unloaded
by these decisions. Pure.

The same leadership change may be reported several times, and reports may arrive late. A term (the leadership
of one epoch) begins only once. Changes with an older epoch than the newest known epoch are ignored. If a
topic was deleted and created again, the epochs of the old topic are ignored.
"""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID


class TermKey(NamedTuple):
    """A partition of a coordinators' topic, by name."""

    topic: str
    partition: int


@dataclass(slots=True)
class _Known:
    topic_id: UUID
    epoch: int
    is_led: bool


@dataclass(frozen=True, slots=True)
class TermChange:
    """First end the term in progress, with the epoch ``ends``. Then begin a term with the epoch ``begins``.
    ``None`` means that no term ends, or that no term begins."""

    ends: int | None = None
    begins: int | None = None


IGNORED = TermChange()


class LeadershipTerms:
    """The newest epoch of each partition, and whether this node leads it."""

    def __init__(self) -> None:
        self._known: dict[TermKey, _Known] = {}

    def begin(self, key: TermKey, topic_id: UUID, epoch: int) -> TermChange:
        """Decide how to react to the report that this node leads the partition from ``epoch`` on."""
        known = self._known.get(key)
        ends = None
        if known is not None and known.topic_id == topic_id:
            if epoch < known.epoch or (epoch == known.epoch and known.is_led):
                return IGNORED
        elif known is not None and known.is_led:
            # The epochs of an old topic cannot be compared with the epochs of the new topic.
            ends = known.epoch
        self._known[key] = _Known(topic_id, epoch, is_led=True)
        return TermChange(ends, epoch)

    def end(self, key: TermKey, topic_id: UUID, epoch: int) -> TermChange:
        """Decide how to react to the report that this node does not lead the partition from ``epoch`` on."""
        known = self._known.get(key)
        if known is None:
            self._known[key] = _Known(topic_id, epoch, is_led=False)
            return IGNORED
        if known.topic_id != topic_id:
            return IGNORED
        if epoch < known.epoch:
            return IGNORED
        was_led, known.is_led, known.epoch = known.is_led, False, epoch
        return TermChange(ends=epoch) if was_led else IGNORED
