"""The state of a log at an offset: the result of the records before it (KIP-405)."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.producers.producer_state import ProducerEntry


class AuxiliaryState(NamedTuple):
    """Everything that a replica must know about the offsets in the remote tier to continue at ``offset``."""

    offset: int
    log_start_offset: int
    leader_epochs: Sequence[EpochEntry]
    """The epochs of the offsets before ``offset``."""
    producers: Sequence[ProducerEntry]
    """The producers as of ``offset``."""
