"""Several replicas of one partition, their controller and a network, all in memory and driven step by step.

Each step is a method of :class:`Group`, and nothing happens between steps. Messages wait until a step
delivers, repeats or drops them. Steps may deliver, repeat and drop messages in any order. After each step
:meth:`Group.check` checks the invariants.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moldau.replication.core.divergence import diverging_epoch
from moldau.replication.core.follower import FetchPosition, FollowerReplica
from moldau.replication.core.leader import InSyncProposal, LeaderReplica, ProposalFailure
from moldau.replication.core.policy import Durability, ReplicaPolicy
from moldau.replication.core.replica import Replica
from moldau.runtime import ErrorCode
from moldau.storage.log.leader_epochs import LeaderEpochs

LAG_MS_MAX = 300


class Entry(NamedTuple):
    epoch: int
    value: int

    def __repr__(self) -> str:
        return f"{self.value}@{self.epoch}"


class ModelLog:
    """A log of batches with one record each. A part of the log is synced."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.synced = 0
        self.history = LeaderEpochs()

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(self, entry: Entry) -> None:
        latest = self.history.latest_epoch
        assert latest is None or entry.epoch >= latest, f"epoch {entry.epoch} cannot follow {latest}"
        if latest != entry.epoch:
            self.history.assign(entry.epoch, self.end)
        self.entries.append(entry)

    def truncate(self, offset: int) -> None:
        del self.entries[offset:]
        self.synced = min(self.synced, offset)
        self.history.truncate_from_end(self.end)

    def lose_unsynced(self) -> None:
        self.truncate(self.synced)


@dataclass
class Metadata:
    leader: int
    leader_epoch: int
    partition_epoch: int
    in_sync: frozenset[int]
    brokers: dict[int, int]


class FetchRequest(NamedTuple):
    source: int
    number: int
    position: FetchPosition
    acknowledged: int
    broker_epoch: int


class FetchAnswer(NamedTuple):
    target: int
    number: int
    entries: tuple[Entry, ...]
    high_watermark: int
    diverging: tuple[int, int] | None


class AlterRequest(NamedTuple):
    source: int
    broker_epoch: int
    proposal: InSyncProposal


class AlterAnswer(NamedTuple):
    target: int
    proposal: InSyncProposal
    failure: ProposalFailure | None
    metadata: Metadata


class News(NamedTuple):
    target: int
    metadata: Metadata


@dataclass
class Node:
    id: int
    log: ModelLog = field(default_factory=ModelLog)
    replica: Any = None
    broker_epoch: int = -1
    checkpoint: int = 0
    """The high watermark in the checkpoint on the disk."""
    watermark: int = 0
    """The highest high watermark since the node was started."""
    epoch: int = -1
    """The highest leader epoch since the node was started."""
    request: int | None = None
    """The fetch that is waiting for its response."""

    @property
    def is_up(self) -> bool:
        return self.replica is not None

    @property
    def leader(self) -> LeaderReplica | None:
        return self.replica.leader if self.replica else None

    @property
    def follower(self) -> FollowerReplica | None:
        return self.replica.follower if self.replica else None


class Controller:
    """The decisions of the active controller on this partition."""

    def __init__(self, replicas: tuple[int, ...]) -> None:
        self.replicas = replicas
        self.leader, self.leader_epoch, self.partition_epoch = -1, 0, 0
        self.in_sync = frozenset(replicas)
        self.active: dict[int, int] = {}
        self.last_broker_epoch = 0
        self.seen: set[int] = set()

    @property
    def metadata(self) -> Metadata:
        return Metadata(self.leader, self.leader_epoch, self.partition_epoch, self.in_sync, dict(self.active))

    def register(self, broker: int) -> int:
        if broker in self.seen:
            self.fence(broker)
        self.seen.add(broker)
        self.last_broker_epoch += 1
        self.active[broker] = self.last_broker_epoch
        if self.leader < 0:
            self._elect()
        return self.last_broker_epoch

    def fence(self, broker: int) -> None:
        self.active.pop(broker, None)
        if len(self.in_sync) > 1 and broker in self.in_sync:
            self.in_sync -= {broker}
            self.partition_epoch += 1
        if self.leader == broker:
            self._elect()

    def move(self, leader: int) -> None:
        if leader in self.in_sync and leader in self.active and leader != self.leader:
            self._lead(leader)

    def _elect(self) -> None:
        candidates = [each for each in self.replicas if each in self.in_sync and each in self.active]
        self._lead(candidates[0] if candidates else -1)

    def _lead(self, leader: int) -> None:
        self.leader, self.leader_epoch, self.partition_epoch = (
            leader,
            self.leader_epoch + 1,
            self.partition_epoch + 1,
        )

    def alter(self, request: AlterRequest) -> ProposalFailure | None:
        proposal = request.proposal
        if (
            self.active.get(request.source) != request.broker_epoch
            or proposal.leader_epoch != self.leader_epoch
            or proposal.partition_epoch != self.partition_epoch
        ):
            return ProposalFailure.SUPERSEDED
        if any(
            self.active.get(id) is None or epoch not in (-1, self.active[id])
            for id, epoch in proposal.members
        ):
            return ProposalFailure.NOT_ATTEMPTED
        self.in_sync = proposal.in_sync
        self.partition_epoch += 1
        return None


class Group:
    """The partition's replicas 1 to ``count``."""

    def __init__(self, count: int, policy: ReplicaPolicy, min_in_sync: int) -> None:
        self.policy, self.min_in_sync = policy, min_in_sync
        self.nodes = {id: Node(id) for id in range(1, count + 1)}
        self.controller = Controller(tuple(self.nodes))
        self.network: list[Any] = []
        self.now_ms = 0
        self.committed: list[Entry] = []
        self.without_power: set[int] = set()
        """Replicas whose loss of power the controller has not noticed."""
        self._last_number = self._last_value = 0

    # -- steps ----------------------------------------------------------------------------------

    def start(self, id: int) -> None:
        """Start a stopped node. It registers at the controller."""
        node = self.nodes[id]
        watermark = min(node.checkpoint, node.log.end)
        node.replica = Replica(id, high_watermark=watermark, policy=self.policy, min_in_sync=self.min_in_sync)
        node.watermark, node.epoch, node.request = watermark, -1, None
        node.broker_epoch = self.controller.register(id)
        self.without_power.discard(id)
        self.announce()

    def kill(self, id: int, *, power: bool = False) -> None:
        """End the program of a node. With ``power``, the machine loses power, and unsynced writes
        are lost."""
        node = self.nodes[id]
        node.checkpoint = node.replica.high_watermark
        node.replica = None
        if power:
            node.log.lose_unsynced()
            self.without_power.add(id)

    def notice(self, id: int) -> None:
        """The controller detects that a node is down."""
        self.controller.fence(id)
        self.without_power.discard(id)
        self.announce()

    def move(self, id: int) -> None:
        """The controller makes an in-sync replica the leader."""
        self.controller.move(id)
        self.announce()

    def announce(self) -> None:
        for node in self.nodes.values():
            self.network.append(News(node.id, self.controller.metadata))

    def produce(self, id: int) -> None:
        node = self.nodes[id]
        leader = node.leader
        assert leader is not None
        self._last_value += 1
        node.log.append(Entry(leader.leader_epoch, self._last_value))
        leader.local_append(node.log.end)

    def sync(self, id: int) -> None:
        node = self.nodes[id]
        node.log.synced = node.log.end
        if node.leader is not None:
            node.leader.local_sync(node.log.synced)

    def fetch(self, id: int) -> None:
        """Send the next fetch. After that, responses to earlier fetches are ignored."""
        node = self.nodes[id]
        follower = node.follower
        assert follower is not None
        self._last_number += 1
        node.request = self._last_number
        position = follower.position(node.log.history, node.log.end)
        acknowledged = follower.acknowledged_offset(node.log.end, node.log.synced)
        self.network.append(FetchRequest(id, node.request, position, acknowledged, node.broker_epoch))

    def propose(self, id: int) -> None:
        node = self.nodes[id]
        assert node.leader is not None
        proposal = node.leader.propose(self.now_ms, LAG_MS_MAX, local_broker_epoch=node.broker_epoch)
        if proposal is not None:
            self.network.append(AlterRequest(id, node.broker_epoch, proposal))

    def give_up(self, id: int) -> None:
        """The response to a proposal did not arrive in time."""
        leader = self.nodes[id].leader
        assert leader is not None
        if leader.pending is not None:
            leader.proposal_failed(leader.pending, ProposalFailure.UNKNOWN)

    def drop_proposals(self, id: int) -> None:
        self.network = [
            each for each in self.network if not (isinstance(each, AlterRequest) and each.source == id)
        ]

    def deliver(self, message: Any) -> None:
        match message:
            case FetchRequest():
                self._serve(message)
            case AlterRequest():
                failure = self.controller.alter(message)
                answer = AlterAnswer(message.source, message.proposal, failure, self.controller.metadata)
                self.network.append(answer)
                if failure is None:
                    self.announce()
            case FetchAnswer() if self.nodes[message.target].is_up:
                self._take_fetched(self.nodes[message.target], message)
            case AlterAnswer() if self.nodes[message.target].is_up:
                self._take_answer(self.nodes[message.target], message)
            case News() if self.nodes[message.target].is_up:
                self._take_news(self.nodes[message.target], message.metadata)

    # -- the parts of a driver ------------------------------------------------------------------

    def _take_news(self, node: Node, metadata: Metadata) -> None:
        if metadata.brokers.get(node.id) != node.broker_epoch:
            return  # these metadata are older than the registration of the broker
        replica, log, role = node.replica, node.log, node.replica.role
        if metadata.leader == node.id:
            replica.lead(
                metadata.leader_epoch,
                self.controller.replicas,
                metadata.in_sync,
                partition_epoch=metadata.partition_epoch,
                log_end_offset=log.end,
                synced_offset=log.synced,
                now_ms=self.now_ms,
            )
            if replica.role is not role:
                log.history.assign(metadata.leader_epoch, log.end)
            if replica.role is not role and metadata.leader_epoch == self.controller.leader_epoch:
                log_prefix = log.entries[: len(self.committed)]
                assert log_prefix == self.committed, f"leader {node.id} lacks committed records: {log_prefix}"
            if replica.leader is not None and replica.leader_epoch == metadata.leader_epoch:
                replica.leader.brokers_changed(metadata.brokers)
        elif metadata.leader < 0:
            replica.resign(metadata.leader_epoch)
        elif replica.follow(metadata.leader_epoch, metadata.leader):
            log.history.truncate_from_end(log.end)
            node.request = None

    def _serve(self, request: FetchRequest) -> None:
        node = self.nodes[request.position.leader_id]
        leader, position, log = node.leader, request.position, node.log
        if leader is None or node.replica.check_epoch(position.leader_epoch) is not ErrorCode.none:
            return
        if leader.is_stale_fetch(request.source, request.broker_epoch):
            return
        diverging = diverging_epoch(log.history, log.end, position.offset, position.last_fetched_epoch)
        entries: tuple[Entry, ...] = ()
        if diverging is None:
            if position.offset > log.end:
                diverging = (-1, log.end)
            else:
                leader.follower_fetched(
                    request.source,
                    position.offset,
                    self.now_ms,
                    synced_offset=request.acknowledged,
                    broker_epoch=request.broker_epoch,
                )
                entries = tuple(log.entries[position.offset : position.offset + 3])
        self.network.append(
            FetchAnswer(request.source, request.number, entries, leader.high_watermark, diverging)
        )

    def _take_fetched(self, node: Node, answer: FetchAnswer) -> None:
        follower = node.follower
        if follower is None or answer.number != node.request:
            return
        node.request = None
        log = node.log
        if answer.diverging is not None:
            log.truncate(follower.truncation(log.history, log.end, *answer.diverging))
            assert not follower.truncated(log.end), f"{node.id} cut committed records"
            return
        for entry in answer.entries:
            log.append(entry)
        follower.appended(log.end, answer.high_watermark)

    @staticmethod
    def _take_answer(node: Node, answer: AlterAnswer) -> None:
        leader = node.leader
        if leader is None or leader.leader_epoch != answer.proposal.leader_epoch:
            return
        if answer.failure is not None:
            leader.proposal_failed(answer.proposal, answer.failure)
        elif answer.metadata.leader_epoch == leader.leader_epoch:
            leader.set_changed(answer.metadata.in_sync, answer.metadata.partition_epoch)

    # -- invariants -----------------------------------------------------------------------------

    def check(self) -> None:
        up = [node for node in self.nodes.values() if node.is_up]
        for node in up:
            watermark = node.replica.high_watermark
            assert watermark >= node.watermark, f"the watermark of {node.id} went back"
            assert node.replica.leader_epoch >= node.epoch, f"the epoch of {node.id} went back"
            node.epoch = node.replica.leader_epoch
            assert watermark <= node.log.end, f"the watermark of {node.id} is behind its log's end"
            if node.leader is not None:
                self._check_committed(node, watermark)
            node.watermark = watermark
            prefix = node.log.entries[:watermark]
            assert prefix == self.committed[:watermark], f"{node.id} holds {prefix} for committed"

        syncs = self.policy.durability is Durability.FSYNCED
        for id in self.controller.in_sync - (set() if syncs else self.without_power):
            log = self.nodes[id].log
            kept = log.entries[: log.synced] if syncs else log.entries
            assert kept[: len(self.committed)] == self.committed, f"{id}, in sync, lacks committed records"

    def _check_committed(self, node: Node, watermark: int) -> None:
        for offset in range(min(watermark, len(self.committed))):
            assert node.log.entries[offset] == self.committed[offset], f"committed record {offset} changed"
        fresh = node.log.entries[len(self.committed) : watermark]
        self.committed += fresh
        if not fresh:
            return
        syncs = self.policy.durability is Durability.FSYNCED
        holders = [
            each.id
            for each in self.nodes.values()
            if each.log.entries[: len(self.committed)] == self.committed
            and (not syncs or each.log.synced >= len(self.committed))
        ]
        if self.min_in_sync > 1:
            assert len(holders) >= self.min_in_sync, f"only {holders} hold what is committed"
        assert not syncs or node.id in holders, "the leader commits what it has not synced"

    def heal(self) -> None:
        """Check that every replica becomes in sync and has the same log if there are no further faults."""
        self.network.clear()
        for node in self.nodes.values():
            if not node.is_up:
                self.start(node.id)
        self.announce()
        for _ in range(200):
            self._deliver_all()
            for node in self.nodes.values():
                self.sync(node.id)
                if node.follower is not None:
                    self.fetch(node.id)
                elif node.leader is not None:
                    self.give_up(node.id)
                    self.propose(node.id)
            self._deliver_all()
            self.now_ms += 50
            if self._has_converged():
                return
        raise AssertionError(f"the replicas do not converge: {self}")

    def _deliver_all(self) -> None:
        while self.network:
            self.deliver(self.network.pop(0))
            self.check()

    def _has_converged(self) -> bool:
        logs = [node.log.entries for node in self.nodes.values()]
        return (
            self.controller.in_sync == frozenset(self.nodes)
            and all(log == logs[0] for log in logs)
            and all(node.replica.high_watermark == len(logs[0]) for node in self.nodes.values())
        )

    def __str__(self) -> str:
        return "\n".join(self.describe(node) for node in self.nodes.values())

    def describe(self, node: Node) -> str:
        log = " ".join(map(repr, node.log.entries))
        if not node.is_up:
            return f"{node.id}: down [{log}]"
        role = node.replica.role
        text = f"{node.id}: {role.name.value} epoch={role.leader_epoch} hw={role.high_watermark}"
        if isinstance(role, LeaderReplica):
            text += f" isr={sorted(role.in_sync)}"
            if role.pending is not None:
                text += f" proposed={sorted(role.pending.in_sync)}"
        if self.policy.durability is Durability.FSYNCED:
            text += f" synced={node.log.synced}"
        return f"{text} [{log}]"
