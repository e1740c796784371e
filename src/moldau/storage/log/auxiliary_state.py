"""The state of a log at an offset. The records before the offset determine this state (KIP-405)."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.producers.producer_state import ProducerEntry


class AuxiliaryState(NamedTuple):
    """The state that a replica needs to continue at ``offset`` when all earlier offsets are in the remote
    tier."""

    offset: int
    log_start_offset: int
    leader_epochs: Sequence[EpochEntry]
    """The leader epochs of the offsets before ``offset``."""
    producers: Sequence[ProducerEntry]
    """The state of the producers at ``offset``."""
