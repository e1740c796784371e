"""This broker's part in the storage of remote log metadata."""

from dataclasses import dataclass
from typing import Protocol

from moldau.tiered.metadata.manager import RemoteLogMetadataManager
from moldau.tiered.metadata.segments import TopicIdPartition

__all__ = ["HostedMetadata", "MetadataHosting", "NoMetadataHosting"]


class MetadataHosting(Protocol):
    """Metadata that are stored in the partitions of a topic. This broker may be the leader of some of these
    partitions.

    The topic-based manager implements this protocol itself.
    """

    @property
    def notifies_of_removals(self) -> bool:
        """Whether the manager notifies this broker when removals of remote data perhaps must be resumed."""
        ...

    def owns(self, partition: TopicIdPartition) -> bool:
        """Whether this broker begins and completes the deletion of a partition's remote data."""
        ...

    def on_metadata_partition_leadership(self, metadata_partition: int, *, leads: bool) -> None:
        """Begin or end this broker's leadership of a partition of the topic."""
        ...

    def problem(self) -> str | None:
        """The reason why the metadata cannot be followed, in a sentence; ``None`` if there is no problem."""
        ...

    def notice(self) -> str | None:
        """A fault that does not stop the manager, in a sentence; ``None`` if there is no fault."""
        ...


class NoMetadataHosting:
    """The hosting for a manager that is a plug-in. The plug-in itself stores the metadata, so any broker may
    delete remote data."""

    notifies_of_removals = False

    def owns(self, partition: TopicIdPartition) -> bool:
        return True

    def on_metadata_partition_leadership(self, metadata_partition: int, *, leads: bool) -> None: ...

    def problem(self) -> None: ...

    def notice(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HostedMetadata:
    """The configured metadata manager, and the :class:`MetadataHosting` of this broker."""

    manager: RemoteLogMetadataManager
    hosting: MetadataHosting
