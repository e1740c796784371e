"""The quorum's requests and responses as the core uses them, for one partition and without topic names.

The package ``moldau.quorum.wire`` converts them from and to Kafka's messages. Every response has the leader
id and the epoch that the answering replica knows (KIP-595). Therefore the requester can detect newer epochs.
"""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import ReplicaKey, Voter
from moldau.runtime import ErrorCode
from moldau.runtime.buffers import Buffer

UNKNOWN_HIGH_WATERMARK = -1
ANY_HIGH_WATERMARK = 2**63 - 1
"""A value for the high watermark in a fetch. With this value, the leader does not answer a waiting fetch only
because its high watermark has advanced. Fetches of versions below 18 get this value, because they have no
field for the high watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """Requests a vote. With ``pre_vote``, the sender only asks whether it would get the vote (KIP-996).
    ``log_end`` is the end of the candidate's log."""

    candidate: ReplicaKey
    epoch: int
    log_end: OffsetAndEpoch
    pre_vote: bool = False
    voter: ReplicaKey | None = None
    """The replica to which the request is addressed, when the sender knows it (KIP-853)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """The sender announces that it leads this epoch."""

    leader_id: int
    epoch: int
    voter: ReplicaKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """The sender has resigned. The first voter in ``preferred_successors`` starts an election at once, and
    the later voters wait longer."""

    leader_id: int
    epoch: int
    preferred_successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Requests records, beginning at ``log_end``. With ``log_end``, a voter also acknowledges that all
    records before this offset are durable on its disk."""

    replica: ReplicaKey
    epoch: int
    log_end: OffsetAndEpoch
    max_wait_ms: int
    max_bytes: int
    high_watermark: int = ANY_HIGH_WATERMARK


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """Requests bytes of a snapshot, beginning at ``position``."""

    replica: ReplicaKey
    epoch: int
    snapshot_id: OffsetAndEpoch
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequest:
    """Requests that a caught-up observer becomes a voter (KIP-853)."""

    voter: Voter
    timeout_ms: int = 0
    ack_when_committed: bool = True
    """Whether the answer waits until the record is committed. Otherwise the answer is sent when the record is
    appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequest:
    """Requests the removal of a voter from the quorum. The voter may be the leader itself."""

    key: ReplicaKey
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    """Sends the correct entry of a voter. While voters are static, the leader stores this entry only in
    memory."""

    voter: Voter
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeVersionRequest:
    """Requests a higher kraft.version. Only this node's own controller sends it."""

    kraft_version: int
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    error: ErrorCode
    leader_id: int | None
    epoch: int
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    error: ErrorCode
    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    error: ErrorCode
    leader_id: int | None
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """At most one of ``diverging``, ``snapshot_id`` and ``records`` is set."""

    error: ErrorCode
    leader_id: int | None
    epoch: int
    high_watermark: int = UNKNOWN_HIGH_WATERMARK
    log_start_offset: int = -1
    diverging: OffsetAndEpoch | None = None
    snapshot_id: OffsetAndEpoch | None = None
    records: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    error: ErrorCode
    leader_id: int | None
    epoch: int
    snapshot_id: OffsetAndEpoch
    size_bytes: int = 0
    position: int = 0
    data: Buffer = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse:
    """The answer to a request that changes voters. ``epoch`` is -1 if the message has no field for an
    epoch."""

    error: ErrorCode
    leader_id: int | None
    epoch: int
    message: str = ""


VoterChangeRequest: TypeAlias = (
    AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest | UpgradeVersionRequest
)
Request: TypeAlias = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | VoterChangeRequest
)
Response: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | VoterChangeResponse
)
