"""Decides which leadership changes take effect: the one rule for loading and unloading coordinators. Pure.

Leadership changes of a partition may be repeated and may arrive late. A term begins once; changes of an
older epoch than the newest known one are ignored. A topic that was deleted and created again starts over,
whatever its epochs.
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
    """Unload the term of ``ends`` first, then load that of ``begins``; ``None`` for neither."""

    ends: int | None = None
    begins: int | None = None


IGNORED = TermChange()


class LeadershipTerms:
    """The newest epoch of each partition, and whether this node leads it."""

    def __init__(self) -> None:
        self._known: dict[TermKey, _Known] = {}

    def begin(self, key: TermKey, topic_id: UUID, epoch: int) -> TermChange:
        """This node leads the partition from ``epoch`` on."""
        known = self._known.get(key)
        ends = None
        if known is not None and known.topic_id == topic_id:
            if epoch < known.epoch or (epoch == known.epoch and known.is_led):
                return IGNORED
        elif known is not None and known.is_led:
            # Epochs of another topic are not comparable with this one's.
            ends = known.epoch
        self._known[key] = _Known(topic_id, epoch, is_led=True)
        return TermChange(ends, epoch)

    def end(self, key: TermKey, topic_id: UUID, epoch: int) -> TermChange:
        """From ``epoch`` on this node does not lead the partition."""
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
