"""The partitions of ``__remote_log_metadata`` that are led here: their leader completes deletions of
segments.
"""

from collections.abc import Callable

from moldau.server.coordinators.entry import CoordinatorEntry, Leaders
from moldau.server.topics.topic_creation import InternalTopic


def remote_metadata_leaders(
    topic: InternalTopic, leaders: Leaders, on_change: Callable[[int], None]
) -> CoordinatorEntry:
    """The kind without a shard: the metadata manager follows the log of each term itself.

    ``on_change`` is called with a partition that this broker begins or ceases to lead.
    """
    return CoordinatorEntry(topic=topic, leaders=leaders, on_change=on_change)
