"""The timing of the quorum, with Kafka's names (``controller.quorum.*``) and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Time-outs in milliseconds and sizes in bytes."""

    election_timeout_ms: int = 1000
    """``controller.quorum.election.timeout.ms``: an election waits between one and two of these."""
    fetch_timeout_ms: int = 2000
    """``controller.quorum.fetch.timeout.ms``: how long a follower trusts a silent leader."""
    election_backoff_max_ms: int = 1000
    """``controller.quorum.election.backoff.max.ms``: bounds the wait of a non-preferred successor
    and of a candidate that has lost."""
    request_timeout_ms: int = 2000
    """``controller.quorum.request.timeout.ms``"""
    retry_backoff_ms: int = 20
    """``controller.quorum.retry.backoff.ms``: pause before a failed request is sent again."""
    fetch_max_wait_ms: int = 500
    """How long a leader may hold a fetch that finds nothing new."""
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_max_bytes: int = 8 * 1024 * 1024
    observer_session_timeout_ms: int = 300_000
    """An observer that is silent for so long is forgotten by DescribeQuorum."""

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader stays one without fetches from a majority: longer than the followers'
        fetch time-out, so that a leader never gives up before its followers would."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_epoch_interval_ms(self) -> int:
        """How often a leader reminds a voter that does not fetch of who leads."""
        return max(1, self.fetch_timeout_ms // 2)

    @property
    def voter_update_interval_ms(self) -> int:
        """How often a controller asks for its entry among the voters while that is not as it should be."""
        return self.fetch_timeout_ms
