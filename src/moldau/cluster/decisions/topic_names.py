"""Kafka's rules for topic names."""

import re

from moldau.cluster.image.topics_image import TopicsImage
from moldau.runtime import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
"""A folder name consists of the topic name, the partition number and suffixes. This limit keeps the folder
name within 255 characters."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise ``KafkaError(invalid_topic_exception)`` when no topic can have this name."""
    reason = _fault(name)
    if reason is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")


def check_new_name(topics: TopicsImage, name: str) -> None:
    """Raise ``KafkaError`` when a new topic cannot have this name, given the existing topics."""
    check_name(name)
    if topics.get(name) is not None:
        raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    other = topics.colliding_name(name)
    if other is not None:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{name}' collides with existing topic '{other}': metric names have '_' for '.'.",
        )


def _fault(name: str) -> str | None:
    if not name:
        return "it is empty."
    if name in (".", ".."):
        return "it is '.' or '..'."
    if len(name) > NAME_LENGTH_MAX:
        return f"it has {len(name)} characters, more than {NAME_LENGTH_MAX}."
    if not _LEGAL.fullmatch(name):
        return f"'{name}' has characters other than ASCII letters, digits, '.', '_' and '-'."
    return None
