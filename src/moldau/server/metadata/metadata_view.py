"""A node's metadata for its subsystems. The subsystems can read the metadata and get notifications, but
cannot change the metadata."""

from collections.abc import Sequence
from typing import Protocol

from moldau.cluster.clock_comparison import ClockComparison
from moldau.cluster.publisher import MetadataPublisher
from moldau.config.listeners import ConfiguredVoter
from moldau.quorum.description import QuorumDescription
from moldau.quorum.quorum_report import QuorumVoice
from moldau.server.metadata.topic_configs import EffectiveConfigs


class QuorumView(Protocol):
    """The state of the metadata quorum, as this node knows it."""

    @property
    def leader_id(self) -> int | None: ...

    @property
    def epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the quorum."""
        ...

    @property
    def kraft_version(self) -> int:
        """The level of kraft.version. It is 1 if a record of the log contains the voters (KIP-853), otherwise
        0."""
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def voice(self) -> QuorumVoice:
        """Reports problems of the quorum."""
        ...

    @property
    def now_ms(self) -> int:
        """The current time of the clock that the quorum uses."""
        ...

    def describe(self) -> QuorumDescription:
        """Describes the quorum. Raises ``KafkaError(not_leader_or_follower)`` when this node does not lead
        it.
        """
        ...


class MetadataView(Protocol):
    """The metadata that a broker follows. The broker sends changes to the active controller through a
    channel."""

    @property
    def publisher(self) -> MetadataPublisher:
        """Publishes the image to its subscribers."""
        ...

    @property
    def configs(self) -> EffectiveConfigs: ...

    @property
    def quorum(self) -> QuorumView: ...

    @property
    def clock(self) -> ClockComparison:
        """Compares this node's clock with the clock of the active controller."""
        ...

    def voters(self) -> Sequence[ConfiguredVoter]:
        """The voters with their addresses."""
        ...

    async def until_current(self) -> None:
        """Wait until the image has every record that was committed at the time of the call.

        Raises ``KafkaError`` while the quorum's leader does not answer.
        """
        ...
