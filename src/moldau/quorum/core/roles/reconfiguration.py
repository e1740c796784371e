"""Changes of the voters by the leader (KIP-853). There is one change at a time, and each change is a record
of the log.

A set is used as soon as it is appended. Two consecutive sets differ by one voter. Therefore each majority of
one set shares a voter with each majority of the other set. Before a leader changes the voters, it must have
committed a record of its own epoch. Otherwise two leaders of different epochs could append sets of voters,
and a majority of one set could have no voter in common with a majority of the other set.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from moldau.quorum.core.effects import AppendVoters, SendReply
from moldau.quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeVersionRequest,
    VoterChangeRequest,
    VoterChangeResponse,
)
from moldau.quorum.core.voters import KRAFT_VERSION_MAX, NO_DIRECTORY, Voter, VoterSet
from moldau.runtime import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.quorum.core.raft import RaftCore
    from moldau.quorum.core.roles.leader import Leader


@dataclass(frozen=True, slots=True)
class Pending:
    """An appended change of the voters. Its request is answered when the change is committed."""

    request_id: int
    deadline_ms: int


class Reconfiguration:
    """Changes the voters on requests to the leader. It exists during one epoch of the leader."""

    def __init__(self, core: "RaftCore", leader: "Leader") -> None:
        self._core = core
        self._leader = leader
        self._pending: Pending | None = None
        self._is_appending = False
        self._told: dict[int, Voter] = {}
        """The entries that static voters have sent about themselves, by node id. No record contains the
        directories in these entries yet."""

    @property
    def deadlines_ms(self) -> list[int]:
        return [] if self._pending is None else [self._pending.deadline_ms]

    def on_request(self, request_id: int, request: VoterChangeRequest) -> None:
        try:
            match request:
                case AddVoterRequest():
                    is_appended = self._add(request)
                case RemoveVoterRequest():
                    is_appended = self._remove(request)
                case UpdateVoterRequest():
                    is_appended = self._update(request)
                case UpgradeVersionRequest():
                    is_appended = self._upgrade(request)
                case _:
                    assert_never(request)
        except KafkaError as error:
            self._reply(request_id, error.code, error.message or "")
            return
        if not is_appended or (isinstance(request, AddVoterRequest) and not request.ack_when_committed):
            self._reply(request_id)
        else:
            core = self._core
            timeout_ms = getattr(request, "timeout_ms", 0)
            timeout_ms = timeout_ms if timeout_ms > 0 else core.settings.request_timeout_ms
            self._pending = Pending(request_id, core.now_ms + timeout_ms)

    def on_log_appended(self) -> None:
        """Record that the log view contains the appended records."""
        self._is_appending = False

    def on_committed(self, offset: int) -> None:
        """Record that all records below ``offset`` are committed."""
        logged = self._core.log.voters
        if logged is not None and offset > logged.offset:
            self._end_pending(ErrorCode.none)

    def poll(self) -> None:
        """If the pending change has taken too long, answer its request with an error. If this leader's own
        entry in the set of voters is wrong, correct it."""
        core, own = self._core, self._core.membership.own
        if self._pending is not None and core.now_ms >= self._pending.deadline_ms:
            self._end_pending(
                ErrorCode.request_timed_out, "the change is not committed yet; it may be, later"
            )
        logged = core.log.voters
        if own is None or logged is None or not core.is_voter or logged.voters.get(core.local.id) == own:
            return
        if own.supports(logged.kraft_version) and self._obstacle() is None:
            self._append(logged.voters.with_voter(own))

    def leave(self) -> None:
        """Answer the pending request after this node has resigned. It is then unknown whether the change will
        be committed."""
        self._end_pending(ErrorCode.not_leader_or_follower, "the leadership has ended before the commit")

    def _add(self, request: AddVoterRequest) -> bool:
        core, voter = self._core, request.voter
        voters = self._changeable()
        if voter.key.id in voters:
            raise KafkaError(
                ErrorCode.duplicate_voter,
                f"node {voter.key.id} is a voter already; the voters are {list(voters.ids)}",
            )
        if voter.key.directory_id == NO_DIRECTORY:
            raise KafkaError(ErrorCode.invalid_request, f"node {voter.key.id} names no directory id")
        self._check_version(voter)
        progress = self._leader.progress.get(voter.key)
        oldest_ms = core.now_ms - core.settings.check_quorum_timeout_ms
        if progress is None or progress.last_fetch_ms is None or progress.last_fetch_ms < oldest_ms:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"node {voter.key.id} with the directory {voter.key.directory_text} does not fetch from the"
                " leader: start it as an observer first",
            )
        if progress.last_caught_up_ms is None:
            raise KafkaError(ErrorCode.request_timed_out, f"node {voter.key.id} has not caught up yet")
        return self._append(voters.with_voter(voter))

    def _remove(self, request: RemoveVoterRequest) -> bool:
        voters, key = self._changeable(), request.key
        voter = voters.get(key.id)
        if voter is None or voter.key != key:
            raise KafkaError(
                ErrorCode.voter_not_found,
                f"node {key.id} with the directory {key.directory_text} is not a voter; the voters are"
                f" {list(voters.ids)}",
            )
        if len(voters) == 1:
            raise KafkaError(ErrorCode.invalid_request, f"node {key.id} is the only voter")
        return self._append(voters.without(key.id))

    def _update(self, request: UpdateVoterRequest) -> bool:
        core, voter = self._core, request.voter
        logged = core.log.voters
        known = core.voters.get(voter.key.id)
        if known is None or not known.key.is_same_replica(voter.key):
            raise KafkaError(ErrorCode.voter_not_found, f"node {voter.key.id} is not a voter")
        if logged is None:
            self._told[voter.key.id] = voter
            return False
        self._check_version(voter)
        if known == voter:
            return False
        return self._append(self._changeable().with_voter(voter))

    def _upgrade(self, request: UpgradeVersionRequest) -> bool:
        """Write the static voters into a record of the log. The record contains the entries that the voters
        have sent."""
        core, level = self._core, request.kraft_version
        logged, own = core.log.voters, core.membership.own
        current = 0 if logged is None else logged.kraft_version
        if not 0 <= level <= KRAFT_VERSION_MAX:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"kraft.version {level} is not supported; the newest is {KRAFT_VERSION_MAX}",
            )
        if level < current:
            raise KafkaError(
                ErrorCode.invalid_update_version, f"kraft.version cannot go from {current} down to {level}"
            )
        if level == current:
            return False
        self._raise_obstacle()
        told = {**self._told, core.local.id: own} if own is not None else self._told
        missing = [node_id for node_id in core.voters.ids if node_id not in told]
        if missing:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"the voters {missing} have not told this leader their directory ids yet",
            )
        voters = VoterSet(told[node_id] for node_id in core.voters.ids)
        behind = [voter.key.id for voter in voters if not voter.supports(level)]
        if behind:
            raise KafkaError(
                ErrorCode.invalid_update_version, f"the voters {behind} do not support kraft.version {level}"
            )
        return False if request.validate_only else self._append(voters, level)

    def _changeable(self) -> VoterSet:
        """Return the voters, if they may be changed now. Otherwise raise ``KafkaError``."""
        logged = self._core.log.voters
        if logged is None:
            raise KafkaError(
                ErrorCode.unsupported_version,
                "the voters are static (controller.quorum.voters): raise the feature kraft.version to 1",
            )
        self._raise_obstacle()
        return logged.voters

    def _raise_obstacle(self) -> None:
        obstacle = self._obstacle()
        if obstacle is not None:
            raise KafkaError(ErrorCode.request_timed_out, obstacle)

    def _obstacle(self) -> str | None:
        """The reason why the voters cannot be changed now."""
        high_watermark, logged = self._leader.high_watermark, self._core.log.voters
        if self._is_appending or high_watermark is None:
            return "the leader has committed nothing in its epoch yet"
        if logged is not None and logged.offset >= high_watermark:
            return "another change of the voters is not committed yet"
        return None

    def _check_version(self, voter: Voter) -> None:
        logged = self._core.log.voters
        if logged is not None and not voter.supports(logged.kraft_version):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"node {voter.key.id} does not support kraft.version {logged.kraft_version}",
            )

    def _append(self, voters: VoterSet, kraft_version: int | None = None) -> bool:
        self._is_appending = True
        self._core.emit(AppendVoters(self._core.epoch, voters, kraft_version))
        return True

    def _end_pending(self, error: ErrorCode, message: str = "") -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._reply(pending.request_id, error, message)

    def _reply(self, request_id: int, error: ErrorCode = ErrorCode.none, message: str = "") -> None:
        core = self._core
        response = VoterChangeResponse(
            error=error, leader_id=core.leader_id, epoch=core.epoch, message=message
        )
        core.emit(SendReply(request_id, response))
