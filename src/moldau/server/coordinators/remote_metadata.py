"""Partitions of ``__remote_log_metadata`` that are led here: their leader ends deletions of segments."""

from collections.abc import Callable

from moldau.config.broker import BrokerConfig
from moldau.server.coordinators.entry import CoordinatorEntry
from moldau.server.subsystems.tiered import settings as tiered_settings


def remote_metadata_leaders(
    config: BrokerConfig, lead: Callable[[int], None], leave: Callable[[int], None]
) -> CoordinatorEntry[None]:
    """The kind without a shard: the metadata manager reads and writes the log itself.

    ``lead`` and ``leave`` are called with a partition that this broker begins and ends to lead.
    """
    return CoordinatorEntry(
        topic=tiered_settings.metadata_topic(config),
        open_log=lambda partition, epoch: None,
        load=lambda partition, epoch, log: lead(partition),
        unload=lambda partition, epoch: leave(partition),
    )
