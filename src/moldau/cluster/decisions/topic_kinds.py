"""The kinds of topics, as far as decisions about their partitions depend on them. Pure."""

from dataclasses import dataclass
from typing import Final

from moldau.cluster.image.topics_image import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKind:
    """The properties that the topics of a kind have in common."""

    replicas_hold_data: bool
    """Whether records live on replicas. Otherwise every replica is complete: it is in sync as soon as its
    broker is active, and any of them leads without loss."""


CLASSIC: Final = TopicKind(replicas_hold_data=True)
DISKLESS: Final = TopicKind(replicas_hold_data=False)


def kind_of(topic: Topic) -> TopicKind:
    """The kind of a topic, which never changes."""
    return DISKLESS if topic.is_diskless else CLASSIC
