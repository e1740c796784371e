"""The time-outs and limits of the quorum, with Kafka's names (``controller.quorum.*``) and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Time-outs in milliseconds and sizes in bytes."""

    election_timeout_ms: int = 1000
    """``controller.quorum.election.timeout.ms``: a replica waits between one and two times this value before
    an election."""
    fetch_timeout_ms: int = 2000
    """``controller.quorum.fetch.timeout.ms``: the time for which a follower waits for a leader that does not
    answer."""
    election_backoff_max_ms: int = 1000
    """``controller.quorum.election.backoff.max.ms``: the longest wait of a candidate that has lost an
    election, and of a successor that is not the preferred one."""
    request_timeout_ms: int = 2000
    """``controller.quorum.request.timeout.ms``: the time after which a request without an answer has failed.
    """
    retry_backoff_ms: int = 20
    """``controller.quorum.retry.backoff.ms``: pause before a failed request is repeated."""
    fetch_max_wait_ms: int = 500
    """How long a leader may wait before it answers a fetch that finds no new records."""
    fetch_max_bytes: int = 8 * 1024 * 1024
    snapshot_chunk_max_bytes: int = 8 * 1024 * 1024
    observer_session_timeout_ms: int = 300_000
    """An observer that has not fetched for this time is not in the answer to DescribeQuorum."""

    @property
    def check_quorum_timeout_ms(self) -> int:
        """The time for which a leader stays leader without fetches from a majority. It is longer than the
        followers' fetch time-out. Therefore, if the connections to all followers are lost at the same time,
        the followers start an election before the leader resigns."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_epoch_interval_ms(self) -> int:
        """The interval at which a leader notifies a voter that does not fetch."""
        return max(1, self.fetch_timeout_ms // 2)

    @property
    def voter_update_interval_ms(self) -> int:
        """The interval at which a controller requests a correction of its own entry in the set of voters,
        while this entry is wrong."""
        return self.fetch_timeout_ms
