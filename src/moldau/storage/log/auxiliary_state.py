"""The state of a log at an offset, which the records before it have left behind (KIP-405)."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.storage.log.leader_epochs import EpochEntry
from moldau.storage.producers.producer_state import ProducerEntry


class AuxiliaryState(NamedTuple):
    """All that a replica has to know of offsets that are in the remote tier, to go on at ``offset``."""

    offset: int
    log_start_offset: int
    leader_epochs: Sequence[EpochEntry]
    """The epochs of the offsets before ``offset``."""
    producers: Sequence[ProducerEntry]
    """The producers as of ``offset``."""
