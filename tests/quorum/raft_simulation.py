"""A cluster of cores with a seed. Its network loses, delays and reorders messages, nodes crash, and named
invariants are checked."""

import heapq
import random
import uuid
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raft_model import Entry, ModelLog
from voter_ids import voters_of

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core import messages as msg
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Leader
from moldau.quorum.core.voters import LoggedVoters, Membership, ReplicaKey, Voter, VoterSet
from moldau.quorum.settings import RaftSettings
from moldau.runtime import SeededEntropy

SETTINGS = RaftSettings(
    election_timeout_ms=100,
    fetch_timeout_ms=200,
    election_backoff_max_ms=100,
    request_timeout_ms=150,
    retry_backoff_ms=10,
    fetch_max_wait_ms=50,
    snapshot_chunk_max_bytes=5,
)


class Invariants:
    """The invariants that are checked after each step."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.committed: list[Entry] = []
        self.committed_in: list[int] = []
        """The epochs in which the records of ``committed`` were committed, in the same order. They never
        decrease."""
        self.high_watermarks: dict[tuple[int, int], int] = {}

    def one_leader_per_epoch(self, epoch: int, node_id: int) -> None:
        assert self.leaders.setdefault(epoch, node_id) == node_id, f"two leaders in epoch {epoch}"

    def leader_has_all_committed(self, node: "Node", epoch: int) -> None:
        """Leader completeness: the log has the records that were committed in earlier epochs.

        A candidate may get its last vote when a leader of a later epoch has committed records already.
        """
        log, end = node.log, bisect_left(self.committed_in, epoch)
        assert log.log_end.offset >= end, f"leader {node.id} lacks committed records"
        assert log.entries[: end - log.start] == self.committed[log.start : end]

    def one_voter_of_difference(self, before: VoterSet, after: VoterSet) -> None:
        known, new = {voter.key for voter in before}, {voter.key for voter in after}
        assert len(known ^ new) <= 1, f"from {before} to {after} in one step"

    def changes_do_not_overlap(self, logged: LoggedVoters | None, epoch: int) -> None:
        if logged is not None and logged.offset >= 0:
            assert logged.offset < len(self.committed), "a change of voters before the last is committed"
            # A leader must commit a record of its own epoch before it appends a change of the voters. Without
            # this rule, its current voters may come from a change that a leader of an earlier epoch has
            # appended and that is never committed.
            has_committed = any(entry.epoch == epoch for entry in reversed(self.committed))
            assert has_committed, "a change of voters before the epoch has committed"

    def one_vote_per_epoch(self, voter: ReplicaKey, epoch: int, candidate: ReplicaKey) -> None:
        known = self.votes.setdefault((voter, epoch), candidate)
        assert known == candidate, f"voter {voter} voted for {known} and {candidate} in epoch {epoch}"

    def committed_never_changes(self, start: int, entries: list[Entry], epoch: int) -> None:
        for offset, entry in enumerate(entries, start):
            if offset < len(self.committed):
                assert self.committed[offset] == entry, f"committed record {offset} changed"
            else:
                assert offset == len(self.committed)
                self.committed.append(entry)
                self.committed_in.append(epoch)

    def high_watermark_is_monotone(self, node: "Node") -> None:
        role = node.core.role
        if isinstance(role, Leader) and role.high_watermark is not None:
            key = (node.id, node.core.epoch)
            assert role.high_watermark >= self.high_watermarks.get(key, 0), "high watermark went back"
            self.high_watermarks[key] = role.high_watermark
            assert role.high_watermark <= node.log.log_end.offset

    def logs_match(self, first: ModelLog, second: ModelLog) -> None:
        start = max(first.start, second.start)
        end = min(first.log_end.offset, second.log_end.offset)
        if end <= start:
            return
        ours = first.entries[start - first.start : end - first.start]
        theirs = second.entries[start - second.start : end - second.start]
        for position in range(len(ours) - 1, -1, -1):
            if ours[position].epoch == theirs[position].epoch:
                assert ours[: position + 1] == theirs[: position + 1], "logs do not match"
                return


@dataclass
class Node:
    """The durable part of a node, and its core."""

    key: ReplicaKey
    log: ModelLog = field(default_factory=ModelLog)
    election: ElectionState = field(default_factory=ElectionState)
    core: Any = None
    life: int = 0
    tick: int = 0
    applied: list[Entry] = field(default_factory=list)
    flush_generation: int = 0
    download: list[Entry] = field(default_factory=list)
    appends: dict[int, str] = field(default_factory=dict)
    membership: Membership | None = None

    @property
    def id(self) -> int:
        return self.key.id

    @property
    def is_up(self) -> bool:
        return self.core is not None


class Cluster:
    """A cluster whose events are in a heap. A seed determines the whole history."""

    def __init__(self, seed: int, voters: int, observers: int = 0, *, dynamic: bool = False) -> None:
        """With ``dynamic``, the voters are in the log, and each node is a controller that may
        become a voter."""
        self.random = random.Random(seed)
        ids = range(1, voters + observers + 1)
        self.voters = voters_of(*range(1, voters + 1))
        self.nodes = {node_id: Node(ReplicaKey(node_id)) for node_id in ids}
        self.disks = 0
        if dynamic:
            self.voters = VoterSet([])
            for node in self.nodes.values():
                self.new_disk(node)
            formatted = VoterSet(Voter(self.nodes[node_id].key) for node_id in ids[:voters])
            for node_id in ids[:voters]:
                self.nodes[node_id].log = ModelLog(formatted_with=formatted)
        self.now_ms = 0
        self.invariants = Invariants()
        self.loss = 0.0
        self.delay_max_ms = 5
        self.sync_max_ms = 8
        self.cut: set[frozenset[int]] = set()
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._payload = 0
        self._requests: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._request_id = 0
        self.outcomes: dict[str, int] = {}
        """Number of requests to change voters, by their answer."""
        for node in self.nodes.values():
            self.start(node)

    # Starts and crashes

    def start(self, node: Node) -> None:
        node.life += 1
        node.flush_generation += 1
        node.download = []
        node.log.flushed = node.log.log_end.offset
        snapshot_id = node.log.latest_snapshot_id
        node.applied = list(node.log.snapshots[snapshot_id]) if snapshot_id else []
        node.core = RaftCore(
            local=node.key,
            voters=self.voters,
            log=node.log,
            election=node.election,
            settings=SETTINGS,
            entropy=SeededEntropy(self.random.randrange(1 << 30)),
            membership=node.membership,
        )
        self._run(node, node.core.start(self.now_ms))

    def crash(self, node: Node) -> None:
        node.core = None
        kept = self.random.randint(node.log.flushed, node.log.log_end.offset)
        node.log.truncate(kept)

    def new_disk(self, node: Node, *, auto_join: bool = False) -> None:
        """Give a stopped node an empty disk, with a new directory id."""
        self.disks += 1
        node.key = ReplicaKey(node.id, uuid.UUID(int=100 * self.disks + node.id))
        node.log, node.election, node.applied = ModelLog(), ElectionState(), []
        contacts = tuple(-other for other in self.nodes if other != node.id)
        node.membership = Membership(Voter(node.key), contacts, auto_join)

    # Time

    def run_for(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._heap)
            action()
        self.now_ms = end_ms

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    def step(self, node: Node, event: ev.Event) -> None:
        if node.is_up:
            self._run(node, node.core.step(event, self.now_ms))

    # Client actions

    def append(self) -> None:
        leaders = [node for node in self.nodes.values() if node.is_up and isinstance(node.core.role, Leader)]
        if leaders:
            node = self.random.choice(leaders)
            self._payload += 1
            node.appends[self._payload] = f"r{self._payload}"
            self.step(node, ev.AppendRequested(self._payload, node.core.epoch))

    def change_voters(self, request: msg.VoterChangeRequest) -> None:
        """Send a request for a change of the voters to each node that has the role of a leader."""
        for node in self.nodes.values():
            if node.is_up and isinstance(node.core.role, Leader):
                self._request_id += 1
                self._requests[(node.id, self._request_id)] = (0, 0, 0)
                self.step(node, ev.RequestReceived(self._request_id, request))

    def snapshot(self, node: Node) -> None:
        offset = len(node.applied)
        if node.is_up and offset > node.log.start and offset <= node.log.log_end.offset:
            snapshot_id = OffsetAndEpoch(offset, node.log.epoch_before(offset))
            node.log.snapshot(snapshot_id, tuple(node.applied))

    # Driving a core

    def _run(self, node: Node, todo: list[fx.Effect]) -> None:
        self.steps += 1
        follow_ups: list[ev.Event] = []
        for effect in todo:
            follow_up = self._carry_out(node, effect)
            if follow_up is not None:
                follow_ups.append(follow_up)
        self._check(node)
        for event in follow_ups:
            self.step(node, event)
        deadline_ms = node.core.next_deadline_ms
        node.tick += 1
        if deadline_ms is not None:
            tick = node.tick

            def wake() -> None:
                if node.tick == tick:
                    self.step(node, ev.Tick())

            self.later(max(1, deadline_ms - self.now_ms), wake)

    def _check(self, node: Node) -> None:
        self.invariants.high_watermark_is_monotone(node)
        if self.steps % 20 == 0:
            for other in self.nodes.values():
                self.invariants.logs_match(node.log, other.log)

    def _carry_out(self, node: Node, effect: fx.Effect) -> ev.Event | None:
        match effect:
            case fx.PersistElectionState(state):
                node.election = state
                if state.voted is not None:
                    self.invariants.one_vote_per_epoch(node.key, state.epoch, state.voted)
            case fx.Send(correlation_id, node_id, request):
                self._send(node, correlation_id, node_id, request)
            case fx.SendReply(request_id, response):
                self._reply(node, request_id, response)
            case fx.ReplyWithRecords(request_id, response, offset, _):
                records = node.log.read(offset, 4)
                self._reply(node, request_id, _replace(response, records=records))
            case fx.ReplyWithSnapshot(request_id, response, size):
                content = node.log.snapshots[response.snapshot_id]
                data = content[response.position : response.position + size]
                self._reply(node, request_id, _replace(response, data=data))
            case fx.BecameLeader(epoch, epoch_start_offset):
                self.invariants.one_leader_per_epoch(epoch, node.id)
                self.invariants.leader_has_all_committed(node, epoch)
                assert epoch_start_offset == node.log.log_end.offset
            case fx.CommitAdvanced(offset):
                self._commit(node, offset)
            case _:
                return self._change_log(node, effect)
        return None

    def _change_log(self, node: Node, effect: fx.Effect) -> ev.Event | None:
        match effect:
            case fx.AppendLeaderChange(epoch):
                node.log.append([Entry(epoch, f"leader{node.id}")])
                return ev.LogAppended()
            case fx.AppendVoters(epoch, voters):
                self.invariants.one_voter_of_difference(node.core.voters, voters)
                self.invariants.changes_do_not_overlap(node.log.voters, epoch)
                node.log.append([Entry(epoch, f"voters{voters}", voters)])
                return ev.LogAppended()
            case fx.AppendAsLeader(append_id, epoch):
                node.log.append([Entry(epoch, node.appends.pop(append_id))])
                return ev.LogAppended()
            case fx.AppendAsFollower(records):
                node.log.append(list(records))
                return ev.LogAppended()
            case fx.TruncateLog(offset):
                node.log.truncate(offset)
                node.flush_generation += 1
                return ev.LogTruncated()
            case fx.FlushLog():
                self._flush(node)
            case fx.WriteSnapshotChunk(_, position, data):
                if position == 0:
                    node.download = []
                assert len(node.download) == position
                node.download.extend(data)
            case fx.InstallSnapshot(snapshot_id):
                self._install(node, snapshot_id)
        return None

    def _install(self, node: Node, snapshot_id: OffsetAndEpoch) -> None:
        content, life = tuple(node.download), node.life
        assert len(content) == snapshot_id.offset

        def installed() -> None:
            if node.life == life and node.is_up:
                node.flush_generation += 1
                node.log.begin_at(snapshot_id, content)
                self.invariants.committed_never_changes(0, list(content), node.core.epoch)
                node.applied = list(content)
                self.step(node, ev.SnapshotInstalled(snapshot_id))

        self.later(self.random.randint(0, 10), installed)

    def _flush(self, node: Node) -> None:
        end, generation, life = node.log.log_end.offset, node.flush_generation, node.life

        def done() -> None:
            if node.life == life and node.is_up and node.flush_generation == generation:
                node.log.flushed = max(node.log.flushed, end)
                self.step(node, ev.LogFlushed(end))
            elif node.life == life and node.is_up:
                self._flush(node)

        self.later(self.random.randint(0, self.sync_max_ms), done)

    def _commit(self, node: Node, offset: int) -> None:
        start = len(node.applied)
        if offset <= start:
            return
        entries = node.log.entries[start - node.log.start : offset - node.log.start]
        assert len(entries) == offset - start, "committed beyond the log"
        self.invariants.committed_never_changes(start, entries, node.core.epoch)
        node.applied.extend(entries)

    # The network

    def _send(self, node: Node, correlation_id: int, target_id: int, request: msg.Request) -> None:
        source_id, life, target_id = node.id, node.life, abs(target_id)
        self._request_id += 1
        request_id = self._request_id
        self._requests[(target_id, request_id)] = (source_id, life, correlation_id)
        target = self.nodes[target_id]
        self._transmit(
            source_id, target_id, lambda: self.step(target, ev.RequestReceived(request_id, request))
        )

    def _reply(self, node: Node, request_id: int, response: msg.Response) -> None:
        route = self._requests.pop((node.id, request_id), None)
        assert route is not None, "a request was answered twice"
        source_id, life, correlation_id = route
        if source_id == 0:
            assert isinstance(response, msg.VoterChangeResponse)
            self.outcomes[response.error.name] = self.outcomes.get(response.error.name, 0) + 1
            return
        source = self.nodes[source_id]

        def arrive() -> None:
            if source.life == life:
                self.step(source, ev.ResponseReceived(correlation_id, response))

        self._transmit(node.id, source_id, arrive)

    def _transmit(self, source: int, target: int, arrive: Callable[[], None]) -> None:
        def unless_cut() -> None:
            if frozenset((source, target)) not in self.cut:
                arrive()

        if self.random.random() >= self.loss:
            self.later(self.random.randint(0, self.delay_max_ms), unless_cut)


def _replace(response: Any, **changes: Any) -> Any:
    names = response.__dataclass_fields__
    return type(response)(**{name: changes.get(name, getattr(response, name)) for name in names})
