"""Chooses the log folder of a new log (KIP-112, KIP-858)."""

import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.storage.folders.log_directory import LogDirectory


class Assignment(NamedTuple):
    """The log folder that the metadata assign to a log."""

    directory_id: uuid.UUID | None = None
    """The id of the assigned folder; None if the metadata assign no folder."""
    is_new: bool = True
    """Whether the partition was created after the start of this process, so that no folder can contain a log
    of it yet."""
    is_cache: bool = False
    """Whether the log may be created again in any folder, because its records are also stored outside the log
    folders."""


NEW: Assignment = Assignment()


def home_for_new(
    directories: Sequence[LogDirectory],
    home: LogDirectory | None,
    counts: Mapping[LogDirectory, int],
    assignment: Assignment = NEW,
) -> LogDirectory:
    """The folder of a new log. It is the log's ``home`` or the assigned folder. If there is neither, it is
    the folder with the fewest logs according to ``counts``.

    A log that may be in an offline folder is not created in another folder, because it would be empty there.
    If every folder is online and the assigned folder is not among them, the assigned folder was replaced. The
    log is then created in another folder.

    Raises ``KafkaError(kafka_storage_error)`` if no folder can be used.
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
    # If the content of an offline folder was read before the folder failed, it is known that this log is not
    # in it.
    unread = [each.path for each in directories if not each.was_read]
    if unread and not assignment.is_cache and (named is not None or not assignment.is_new):
        raise _refusal(f"the log may be in a folder that is offline: {', '.join(unread)}")
    return min(online, key=lambda each: counts.get(each, 0))


def _refusal(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, reason)
