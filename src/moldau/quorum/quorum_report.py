"""Reports on the quorum. The log gets a line for each change of state, and the health page shows current
problems.

This node knows the state of its peers from their responses and from their requests. Each peer has one
:class:`PeerState`, and each change of this state is logged. Elections are logged at info. If the quorum has
no leader for longer than an election should take, a warning is logged. This problem is over when the next
leader is known.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from moldau.quorum.core.messages import FetchRequest, FetchSnapshotRequest, Request, VoteRequest
from moldau.quorum.core.voters import NO_DIRECTORY, ReplicaKey, VoterSet, directory_text
from moldau.quorum.settings import RaftSettings
from moldau.runtime import ErrorCode

logger = logging.getLogger(__name__)

STRANGER_SILENCE_MS: Final = 60_000
"""A node whose requests are refused is forgotten if it sends no request for this time, in ms."""
STRANGERS_MAX: Final = 32
"""Maximum number of nodes with refused requests that are stored. If more nodes send such requests, the
requests of the additional nodes are also refused, but without a log line."""

FETCHES: Final = (FetchRequest, FetchSnapshotRequest)
NODES_MAX: Final = 4096
"""Maximum number of nodes whose directory ids are stored. This node compares the directory ids of requests
that have the same node id."""


class PeerState(Enum):
    """The state of another voter, as this node knows it."""

    UNKNOWN = "unknown"
    REACHED = "reached"
    UNREACHABLE = "unreachable"
    FOREIGN = "foreign"
    """The peer belongs to another cluster."""
    DISAGREES = "disagrees"
    """The peer has another set of voters."""


_ERROR_STATES: Final = {
    ErrorCode.inconsistent_cluster_id: PeerState.FOREIGN,
    ErrorCode.inconsistent_voter_set: PeerState.DISAGREES,
}


@dataclass(slots=True)
class Peer:
    """Another voter or a bootstrap server. Its state comes from its answers to this node's requests, and from
    its own fetches."""

    state: PeerState = PeerState.UNKNOWN
    failing_since_ms: int | None = None
    problem: str = ""


@dataclass(slots=True)
class Stranger:
    """A node whose requests this node refuses."""

    problem: str
    heard_ms: int


@dataclass(slots=True)
class Directories:
    """The directory ids that requests with one node id have contained."""

    current: uuid.UUID
    before: uuid.UUID | None = None
    used_twice_ms: int | None = None


class QuorumVoice:
    """Writes log lines about the quorum, and collects current problems, for one replica. Times are in
    milliseconds of the driver's clock."""

    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        settings: RaftSettings,
        cluster_id: str,
        bootstrap_servers: Mapping[int, str] | None = None,
    ) -> None:
        """``bootstrap_servers`` contains the address (``HOST:PORT``) of each server in
        ``controller.quorum.bootstrap.servers``, by the server's id. These servers are reported while this
        node knows no voter."""
        self._local = local
        self._voters = voters
        self._settings = settings
        self._cluster_id = cluster_id
        self._bootstrap_servers = dict(bootstrap_servers or {})
        self._peers = {node_id: Peer() for node_id in self._asked_nodes()}
        self._strangers: dict[int, Stranger] = {}
        self._directories: dict[int, Directories] = {}
        self._leader: tuple[int, int] | None = None
        """The id of the known leader, and its epoch."""
        self._leader_heard_ms = 0
        """The time of the leader's last accepted answer. Before its first answer, this is the time at which
        the leader became known."""
        self._leaderless_since_ms: int | None = None
        self._has_told_of_no_leader = False

    def voters_changed(self, voters: VoterSet) -> None:
        """Record a new set of voters in the log (KIP-853)."""
        before, self._voters = self._voters, voters
        self._peers = {node_id: self._peers.get(node_id, Peer()) for node_id in self._asked_nodes()}
        if before.ids != voters.ids:
            logger.info("the voters of the metadata quorum are %s", list(voters.ids))

    def _asked_nodes(self) -> tuple[int, ...]:
        """The ids of the nodes whose answers are observed: the other voters, or the bootstrap servers while
        this node knows no voters."""
        return self._voters.others(self._local.id) if self._voters.ids else tuple(self._bootstrap_servers)

    @property
    def leaderless_limit_ms(self) -> int:
        """The time after which a missing leader is a problem. If a majority of the voters can reach each
        other, an election takes less time."""
        return self._settings.fetch_timeout_ms + 2 * self._settings.election_timeout_ms

    # Elections

    def started(self, now_ms: int) -> None:
        """Record that the replica has started. The leader is not known yet."""
        if self._leader is None:
            self._leaderless_since_ms = now_ms

    def led(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Record the leader of an epoch."""
        if self._leader == (leader_id, epoch):
            return
        since_ms = self._absent_since_ms()
        self._leader, self._leaderless_since_ms = (leader_id, epoch), None
        self._leader_heard_ms = now_ms
        who = "this node" if leader_id == self._local.id else "node"
        if self._has_told_of_no_leader and since_ms is not None:
            self._has_told_of_no_leader = False
            logger.warning(
                "%s %d leads the metadata quorum in epoch %d: it has a leader again after %.1f s",
                who,
                leader_id,
                epoch,
                (now_ms - since_ms) / 1000,
            )
        else:
            logger.info("%s %d leads the metadata quorum in epoch %d", who, leader_id, epoch)

    def leader_lost(self, epoch: int, now_ms: int) -> None:
        """Record that no leader of ``epoch`` is known."""
        if self._leader is not None:
            logger.info("the metadata quorum has no leader in epoch %d yet", epoch)
            since_ms = self._absent_since_ms() if self._has_told_of_no_leader else None
            self._leader, self._leaderless_since_ms = None, now_ms if since_ms is None else since_ms

    def majority_lost(self, epoch: int) -> None:
        """Log that this node led ``epoch`` and has resigned, because it got no fetches from a majority of the
        voters."""
        logger.warning(
            "this node %d got no requests from a majority of the voters %s for %d ms and therefore no longer"
            " leads epoch %d of the metadata quorum",
            self._local.id,
            list(self._voters.ids),
            self._settings.check_quorum_timeout_ms,
            epoch,
        )

    def tick(self, now_ms: int) -> None:
        """Check the time-outs. This method is called from time to time."""
        problem = self.no_leader(now_ms)
        if problem is not None and not self._has_told_of_no_leader:
            self._has_told_of_no_leader = True
            logger.warning("%s", problem)

    # Peers

    def answered(self, node_id: int, error: ErrorCode, request: Request, now_ms: int) -> None:
        """Record an answer of a voter.

        Any node may fetch, and the epoch is checked before the voters. Therefore only an accepted vote, or a
        similar request, shows that the two nodes have the same voters.
        """
        peer = self._peers.get(node_id)
        if peer is None:
            return
        peer.failing_since_ms = None
        if error is ErrorCode.none and isinstance(request, FETCHES):
            self._fetched(node_id, now_ms)
        match _ERROR_STATES.get(error, PeerState.REACHED):
            case PeerState.FOREIGN:
                text = f"{self._name(node_id)} belongs to another cluster than {self._cluster_id}"
                self._enter(peer, PeerState.FOREIGN, text)
            case PeerState.DISAGREES:
                self.not_counted(node_id)
            case _ if peer.state is PeerState.DISAGREES and (
                error is not ErrorCode.none or isinstance(request, FETCHES)
            ):
                return
            case _:
                self._reached(node_id)
                if peer.state in (PeerState.FOREIGN, PeerState.DISAGREES):
                    logger.warning("%s accepts the requests of this node again", self._name(node_id))
                peer.state, peer.problem = PeerState.REACHED, ""

    def not_counted(self, node_id: int | None) -> None:
        """Record that a voter does not have this node in its set of voters."""
        peer = None if node_id is None else self._peers.get(node_id)
        if node_id is not None and peer is not None:
            text = f"{self._name(node_id)} does not count this node {self._local.id} among its voters"
            self._enter(peer, PeerState.DISAGREES, text)

    def _fetched(self, node_id: int, now_ms: int) -> None:
        """Record that a node answered a fetch. Only the leader answers fetches with records, so this answer
        shows that the leader is alive."""
        if self._leader is None or self._leader[0] != node_id:
            return
        if self._has_told_of_no_leader:
            self._has_told_of_no_leader = False
            silent_s = (now_ms - self._leader_heard_ms) / 1000
            logger.warning("%s, the leader, answers again after %.1f s", self._name(node_id), silent_s)
        self._leader_heard_ms = now_ms

    def failed(self, node_id: int, reason: str, asked_ms: int, now_ms: int) -> None:
        """Record that a request that was sent at ``asked_ms`` has no answer. If a voter does not answer for
        some time, it is unreachable."""
        peer = self._peers.get(node_id)
        if peer is None:
            return
        if peer.failing_since_ms is None:
            peer.failing_since_ms = asked_ms
        if now_ms - peer.failing_since_ms >= self._settings.request_timeout_ms:
            text = f"{self._name(node_id)} is unreachable: {reason}"
            self._enter(peer, PeerState.UNREACHABLE, text)

    def _enter(self, peer: Peer, state: PeerState, problem: str) -> None:
        if peer.state is not state:
            peer.state, peer.problem = state, problem
            logger.warning("%s", problem)

    # Requests of other nodes

    def asked(self, request: Request, now_ms: int) -> None:
        """Record a request from a node of this cluster."""
        if isinstance(request, VoteRequest):
            self._heard_directory(request.candidate, now_ms)
        elif isinstance(request, FETCHES):
            self._heard_directory(request.replica, now_ms)
            # A leader sends no requests to a voter that fetches. Therefore only the voter's fetch can show
            # that the voter is reachable again.
            self._reached(request.replica.id)

    def _reached(self, node_id: int) -> None:
        """Record that a node is reachable again."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.state is PeerState.UNREACHABLE:
            logger.warning("%s is reachable again", self._name(node_id))
            peer.state, peer.problem, peer.failing_since_ms = PeerState.REACHED, "", None

    def refused(self, node_id: int, error: ErrorCode, now_ms: int, *, cluster_id: str | None = None) -> None:
        """Record that a request of a node was refused."""
        if error is ErrorCode.inconsistent_cluster_id:
            problem = (
                f"node {node_id} of cluster {cluster_id} sends requests to this node {self._local.id} of"
                f" cluster {self._cluster_id}"
            )
        elif error is ErrorCode.inconsistent_voter_set:
            is_voter = node_id in self._voters
            role = "counts this node among the voters" if is_voter else "counts itself among the voters"
            problem = (
                f"node {node_id} {role} of the metadata quorum; controller.quorum.voters of this node"
                f" {self._local.id} names {list(self._voters.ids)}"
            )
        else:
            return
        known = self._strangers.get(node_id)
        if known is not None and known.problem == problem and not self._is_silent(known, now_ms):
            known.heard_ms = now_ms
            return
        if len(self._strangers) >= STRANGERS_MAX:
            heard = self._strangers.items()
            self._strangers = {key: each for key, each in heard if not self._is_silent(each, now_ms)}
        if len(self._strangers) < STRANGERS_MAX:
            self._strangers[node_id] = Stranger(problem, now_ms)
            logger.warning("%s", problem)

    def _heard_directory(self, key: ReplicaKey, now_ms: int) -> None:
        """Record the directory of a node. If requests with one node id alternate between two directories,
        there are two nodes with this id. A single change means a new disk."""
        is_new = key.id not in self._directories
        if key.directory_id == NO_DIRECTORY or (is_new and len(self._directories) >= NODES_MAX):
            return
        known = self._directories.setdefault(key.id, Directories(key.directory_id))
        is_own = key.id == self._local.id and key.directory_id != self._local.directory_id
        is_back = key.directory_id == known.before
        if key.directory_id != known.current:
            known.before, known.current = known.current, key.directory_id
        if is_own or is_back:
            if known.used_twice_ms is None or now_ms - known.used_twice_ms > STRANGER_SILENCE_MS:
                logger.warning("%s", self._used_twice(key.id))
            known.used_twice_ms = now_ms

    def _used_twice(self, node_id: int) -> str:
        known = self._directories[node_id]
        other = self._local.directory_id if node_id == self._local.id else known.before
        both = " and ".join(directory_text(each) for each in (known.current, other) if each is not None)
        return f"node.id {node_id} is used by two nodes, with the directories {both}"

    # Current problems

    def no_leader(self, now_ms: int) -> str | None:
        """The reason why there has been no leader for too long. The result is ``None`` when the leader
        answers, or when an election is in progress.

        A node that cannot reach a majority stays in its epoch, and still stores the leader of this epoch
        (KIP-996). Therefore a leader can be known although its process has ended.
        """
        since_ms = self._absent_since_ms()
        if since_ms is None or now_ms - since_ms < self.leaderless_limit_ms:
            return None
        missing = [node_id for node_id, peer in self._peers.items() if peer.state is not PeerState.REACHED]
        of = f"; of its voters {list(self._voters.ids)} this node does not reach {missing}" if missing else ""
        if missing and not self._voters.ids:
            servers = ", ".join(self._bootstrap_servers[node_id] for node_id in missing)
            of = f"; of controller.quorum.bootstrap.servers this node does not reach {servers}"
        what = "the metadata quorum has had no leader for"
        if self._leader is not None:
            what = f"the leader {self._leader[0]} of the metadata quorum has not answered for"
        return f"{what} {(now_ms - since_ms) / 1000:.0f} s{of}"

    def _absent_since_ms(self) -> int | None:
        """Return the time since which no leader is known. If a leader is known, the result is the time of its
        last answer."""
        if self._leader is None or self._leader[0] == self._local.id:
            return self._leaderless_since_ms
        return self._leader_heard_ms

    def problems(self, now_ms: int) -> list[str]:
        """The current problems that this node has with other nodes, as one sentence for each problem."""
        found = [peer.problem for peer in self._peers.values() if peer.problem]
        found += [each.problem for each in self._strangers.values() if not self._is_silent(each, now_ms)]
        found += [
            self._used_twice(node_id)
            for node_id, known in self._directories.items()
            if known.used_twice_ms is not None and now_ms - known.used_twice_ms <= STRANGER_SILENCE_MS
        ]
        return found

    @staticmethod
    def _is_silent(stranger: Stranger, now_ms: int) -> bool:
        return now_ms - stranger.heard_ms > STRANGER_SILENCE_MS

    def _name(self, node_id: int) -> str:
        server = self._bootstrap_servers.get(node_id)
        if server is not None:
            return f"{server} of controller.quorum.bootstrap.servers"
        voter = self._voters.get(node_id)
        address = f" ({voter.host}:{voter.port})" if voter is not None and voter.host else ""
        return f"node {node_id}{address} of the metadata quorum"
