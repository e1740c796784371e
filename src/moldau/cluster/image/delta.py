"""Replays metadata records, and makes a new image from an image. The controller, the brokers and the snapshot
reader use this module."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from moldau.cluster.errors import MetadataError
from moldau.cluster.image.changes import Changes
from moldau.cluster.image.image import EMPTY_IMAGE, MetadataImage, Provenance
from moldau.cluster.image.parts.configs import CONFIGS, ConfigChanges
from moldau.cluster.image.parts.nodes import BROKERS
from moldau.cluster.image.parts.part import ImageChanges
from moldau.cluster.image.parts.table import PARTS, WITHOUT_STATE
from moldau.cluster.image.parts.topics import TOPICS
from moldau.cluster.image.registrations import BrokerRegistration
from moldau.cluster.image.topics_delta import TopicsDelta


class MetadataDelta(ImageChanges):
    """Changes since ``image``. Call :meth:`replay` for each record in order, then :meth:`apply`.

    Subscribers read ``topics.changed``, ``topics.removed``, ``brokers.entries`` and so on, and the changes of
    other parts by :meth:`changes`.
    """

    @property
    def topics(self) -> TopicsDelta:
        return self.changes(TOPICS)

    @property
    def brokers(self) -> Changes[int, BrokerRegistration]:
        return self.changes(BROKERS)

    @property
    def configs(self) -> ConfigChanges:
        return self.changes(CONFIGS)

    def replay(self, record: object) -> None:
        """Apply one record. Raises :class:`MetadataError` when the record contradicts the image or is
        unknown."""
        try:
            part, replay, effects = PARTS.replays[type(record)]
        except KeyError:
            if type(record) in WITHOUT_STATE:
                return
            name = type(record).__name__
            raise MetadataError(f"metadata record {name} is not known to this version") from None
        for effect in effects:
            effect(self, record)
        # ``changes(part)`` returns the same object as the lookup in the dict. The lookup is tried first,
        # because it is faster than the call, and this line runs for each record of a log.
        replay(self._changes.get(part) or self.changes(part), record)

    def replay_all(self, records: Iterable[object]) -> "MetadataDelta":
        """Apply records in order; returns this object."""
        for record in records:
            self.replay(record)
        return self

    def apply(self, provenance: Provenance | None = None) -> MetadataImage:
        """The image with all changes applied."""
        values: dict[str, Any] = {} if provenance is None else {"provenance": provenance}
        for part, changes in self._changes.items():
            part.written(self.image, values, changes.apply())
        return replace(self.image, **values)


def image_of(records: Iterable[object], image: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    """The image after the records are applied."""
    return MetadataDelta(image).replay_all(records).apply()


def delta_between(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """The difference between two images. It is needed when the new image was not made record by record."""
    delta = MetadataDelta(before)
    for part in PARTS.parts:
        value = part.of(after)
        if value is not part.of(before):
            delta.changes(part).move_to(value)
    return delta
