"""Effects of the core, and the contract of the driver that carries them out.

The driver's contract
=====================
1. **In order.** The effects of a step are carried out in the given order, one event at a time. All of them
   are carried out before the next event is passed to the core.
2. **Persist before send.** :class:`PersistElectionState` is durable before any later effect starts. Before
   that, a crash could undo the change of the state. So the node must not send its vote, or the message that
   it leads, before the state is durable.
3. **The results of the log come first.** :class:`AppendAsLeader`, :class:`AppendLeaderChange`,
   :class:`AppendVoters`, :class:`AppendAsFollower` and :class:`TruncateLog` are carried out at once. The
   bytes are written, not synced. Then their :class:`~moldau.quorum.core.events.LogAppended` or
   ``LogTruncated`` is passed to the core before any other event. The core reads the log through a view that
   always contains the results of the effects.
4. **Flushed means durable.** ``LogFlushed(offset)`` covers only bytes that were written before the sync
   began, and that have not been truncated since. A flush may take a long time, and other events continue.
5. **Apply after commit.** The state machine gets only records below the offset of the last
   :class:`CommitAdvanced`. It gets each record once, in log order.
6. **Answer once.** For every request that is sent, the driver reports one ``ResponseReceived`` or one
   ``RequestFailed``. If it reports neither of them, the core treats the request as failed after
   ``request_timeout_ms``.
7. **Stop after an error.** After a disk error in any of these steps, the node leaves the quorum, because it
   must not answer requests after a failed write. It also leaves the quorum after a
   :class:`~moldau.quorum.core.raft.RaftInvariantError`.
"""

from dataclasses import dataclass
from typing import TypeAlias

from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.messages import FetchResponse, FetchSnapshotResponse, Request, Response
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import VoterSet
from moldau.runtime import ErrorCode
from moldau.runtime.buffers import Buffer


@dataclass(frozen=True, slots=True)
class PersistElectionState:
    """Replace the ``quorum-state`` file, durably."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request to a peer."""

    correlation_id: int
    node_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class SendReply:
    """Send the answer to a request."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class ReplyWithRecords:
    """Answer a fetch with whole batches, beginning at ``offset``. The answer has at least one batch, even if
    this batch is larger than ``max_bytes``. Further batches are added while the answer stays below
    ``max_bytes``."""

    request_id: int
    response: FetchResponse
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReplyWithSnapshot:
    """Answer with a part of a snapshot. The part begins at the ``position`` of the response."""

    request_id: int
    response: FetchSnapshotResponse
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AppendLeaderChange:
    """Append the LeaderChange control record that begins an epoch (KIP-595)."""

    epoch: int
    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append a VotersRecord (KIP-853). If a KRaftVersionRecord is given, it is written before the
    VotersRecord in the same batch."""

    epoch: int
    voters: VoterSet
    kraft_version: int | None = None


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The log contains a new set of voters. The set is used before it is committed."""

    voters: VoterSet


@dataclass(frozen=True, slots=True)
class AppendAsLeader:
    """Append the records of an ``AppendRequested`` in this epoch."""

    append_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RejectAppend:
    """The records of an ``AppendRequested`` were refused."""

    append_id: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class AppendAsFollower:
    """Append the leader's batches with their offsets and epochs."""

    records: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Drop all records at or after ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class FlushLog:
    """Sync the written bytes, then submit ``LogFlushed``. Two flushes may be combined into one."""


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """A majority of the voters has the records below ``offset``. These records will never change."""

    offset: int


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This node is now the leader. Its state machine must apply all records below ``epoch_start_offset``
    before it makes decisions."""

    epoch: int
    epoch_start_offset: int


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """Another node leads this epoch."""

    epoch: int
    leader_id: int


@dataclass(frozen=True, slots=True)
class LeaderLost:
    """The leader of this epoch is not known."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """This node led ``epoch`` and has resigned."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteSnapshotChunk:
    """Write bytes of a downloaded snapshot. At position 0 the download begins again."""

    snapshot_id: OffsetAndEpoch
    position: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The download is complete. Make the snapshot durable, begin the log at the end of the snapshot, and
    submit ``SnapshotInstalled``."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class AbandonSnapshot:
    """The download was abandoned. Delete the written bytes."""

    snapshot_id: OffsetAndEpoch


Effect: TypeAlias = (
    PersistElectionState
    | Send
    | SendReply
    | ReplyWithRecords
    | ReplyWithSnapshot
    | AppendLeaderChange
    | AppendVoters
    | VotersChanged
    | AppendAsLeader
    | RejectAppend
    | AppendAsFollower
    | TruncateLog
    | FlushLog
    | CommitAdvanced
    | BecameLeader
    | BecameFollower
    | LeaderLost
    | LeadershipEnded
    | WriteSnapshotChunk
    | InstallSnapshot
    | AbandonSnapshot
)
