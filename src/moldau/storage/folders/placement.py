"""The log folder of a new log (KIP-112, KIP-858)."""

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.folders.log_directory import LogDirectory


class Assignment(NamedTuple):
    """The place of a log by the metadata."""

    directory_id: uuid.UUID | None = None
    """The folder that the metadata name; None where they name none."""
    is_new: bool = True
    """Whether the partition cannot have a log yet."""
    is_cache: bool = False
    """Whether the log can be made anew anywhere, because its records are elsewhere."""


NEW: Assignment = Assignment()


def home_for_new(
    directories: Sequence[LogDirectory],
    home: LogDirectory | None,
    counts: Mapping[LogDirectory, int],
    assignment: Assignment = NEW,
) -> LogDirectory:
    """The folder of a new log: its ``home``, or the assigned folder, or else the one with the fewest logs by
    ``counts``.

    A log that may be in an offline folder is not created in another folder, because it would be empty there.
    Where every folder is online, an assigned folder that is not among them was replaced.

    Raises ``KafkaError(kafka_storage_error)`` where no folder can be used.
    """
    named = assignment.directory_id
    if home is None and named is not None:
        home = next((each for each in directories if each.directory_id == named), None)
        if home is not None and assignment.is_cache and not home.is_online:
            home = None
    if home is not None:
        if not home.is_online:
            raise _refusal(f"log folder {home.path} is offline: {home.offline_reason}")
        return home
    online = [each for each in directories if each.is_online]
    if not online:
        raise _refusal("every log folder is offline")
    # A folder that failed after it was read is known to hold this log or not.
    unread = [each.path for each in directories if not each.was_read]
    if unread and not assignment.is_cache and (named is not None or not assignment.is_new):
        raise _refusal(f"the log may be in a folder that is offline: {', '.join(unread)}")
    return min(online, key=lambda each: counts.get(each, 0))


def _refusal(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, reason)
