"""The state of an open log, which the parts of the log share."""

from dataclasses import dataclass

from moldau.storage.log.log_producers import LogProducers
from moldau.storage.log.segmented_log import SegmentedLog
from moldau.storage.log.state.disk_access import DiskAccess
from moldau.storage.log.state.offsets import LogOffsets
from moldau.storage.log.state.open_epochs import LogEpochs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The objects with the state of one log. The objects stay the same while the log is open."""

    access: DiskAccess
    """Whether the disk works."""
    segments: SegmentedLog
    """The bytes, and the log's end."""
    offsets: LogOffsets
    epochs: LogEpochs
    producers: LogProducers
