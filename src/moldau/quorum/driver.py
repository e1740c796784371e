"""The driver of the Raft core. One task passes events to the core and carries out the core's effects, in
order.

The module ``core/effects.py`` defines the driver's contract.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, assert_never

from moldau.quorum.addresses import QuorumAddresses
from moldau.quorum.append_queue import AppendQueue
from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.messages import Request, Response, VoterChangeRequest, VoterChangeResponse
from moldau.quorum.core.raft import RaftCore
from moldau.quorum.core.roles import Leader, Resigned
from moldau.quorum.core.voters import Membership, ReplicaKey, VoterSet
from moldau.quorum.description import QuorumDescription, describe
from moldau.quorum.effects.event_queue import EventQueue
from moldau.quorum.effects.log_writer import LogWriter, not_controller
from moldau.quorum.effects.replies import PendingReplies
from moldau.quorum.effects.snapshot_install import SnapshotInstall
from moldau.quorum.quorum_report import QuorumVoice
from moldau.quorum.settings import RaftSettings
from moldau.quorum.snapshot_pruning import SnapshotPruning, SnapshotRetention
from moldau.quorum.state_store import QuorumStateStore
from moldau.quorum.stored_log import StoredLogView
from moldau.quorum.subscriptions import QuorumListener, Subscriptions
from moldau.quorum.voter_history import VoterHistory, snapshot_records
from moldau.quorum.wire.requests import RequestCodec, WireRequest, WireResponse, sender_of
from moldau.quorum.wire.responses import error_response, from_response, to_response
from moldau.quorum.wire.voters import endpoints_of_request, endpoints_of_response
from moldau.runtime import ErrorCode, KafkaError, Machine
from moldau.storage.snapshots.replicated_log import LogPosition, ReplicatedLog, SnapshotWriter

logger = logging.getLogger(__name__)


class PeerSender(Protocol):
    """Sends requests to the other replicas."""

    async def send(self, node_id: int, message: WireRequest) -> WireResponse:
        """Send a request and return the answer. Raises ``KafkaError`` or ``OSError`` if no answer comes."""
        ...


class NoPeers:
    """A sender that never sends. It is for a single voter, which has no peers."""

    async def send(self, node_id: int, message: WireRequest) -> WireResponse:
        raise KafkaError(ErrorCode.network_exception, f"node {node_id} cannot be reached: there are no peers")


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Settings of a driver."""

    raft: RaftSettings = field(default_factory=RaftSettings)
    wire: RequestCodec = field(default_factory=RequestCodec)
    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    """``controller.quorum.bootstrap.servers``: the hosts and ports of nodes that may know the leader."""
    append_linger_ms: int = 0
    """``controller.quorum.append.linger.ms``: the time for which appends are collected while no write is in
    progress."""
    append_max_batch_bytes: int = 8 * 1024 * 1024
    retention: SnapshotRetention = field(default_factory=SnapshotRetention)


@dataclass(frozen=True, slots=True)
class QuorumIdentity:
    """The identity of a node in a quorum."""

    local: ReplicaKey
    static_voters: VoterSet
    """The configured voters, which are used until the log contains voters."""
    membership: Membership = field(default_factory=Membership)


class QuorumDriver:
    """A replica of a replicated log on this node.

    Use it in this order: construct it, ``add_listener``, ``await start()``, ``append`` while it leads,
    ``await stop()``.
    """

    def __init__(
        self,
        machine: Machine,
        log: ReplicatedLog,
        *,
        identity: QuorumIdentity,
        state_store: QuorumStateStore,
        sender: PeerSender | None = None,
        config: DriverConfig | None = None,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        self._machine = machine
        self._log = log
        self._local = identity.local
        self._config = config or DriverConfig()
        self._static_voters = identity.static_voters
        self.addresses = QuorumAddresses(lambda: self.voters, self._config.bootstrap_servers)
        self._membership = replace(identity.membership, bootstrap_ids=self.addresses.bootstrap_ids)
        self.history = VoterHistory()
        self._state_store = state_store
        self._sender: PeerSender = sender or NoPeers()
        self._on_fatal = on_fatal
        self._subscriptions = Subscriptions(log, self._local.id)
        self._appends = AppendQueue(self._config.append_max_batch_bytes)
        self._pruning = SnapshotPruning(log, self._config.retention, machine.clock.now_ms)
        self.voice = QuorumVoice(
            self._local,
            self._static_voters,
            self._config.raft,
            self._config.wire.cluster_id or "",
            self.addresses.bootstrap_servers(),
        )
        self._events = EventQueue(self._fail)
        self._replies = PendingReplies(log, self._events)
        linger_ms = self._config.append_linger_ms
        self._writer = LogWriter(machine, log, self._appends, self.history, self._events, linger_ms)
        self._snapshots = SnapshotInstall(log, self._writer, self.history, self._events)
        self._core: RaftCore | None = None
        self._others_know = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._resigned_epoch = -1
        """The last epoch in which the state machine asked this node to resign."""
        self._failure: Exception | None = None
        self._is_stopped = False

    # Life cycle

    async def start(self) -> None:
        """Load the durable state and begin. If this node is the only voter, it already leads when this method
        returns.

        Raises ``QuorumStateError`` if the ``quorum-state`` file is not valid, and ``DiskError`` if the disk
        fails.
        """
        # The voters are read from the log before the core asks for them.
        self.history.load(self._log)
        is_static = self.history.latest is None and len(self._static_voters) > 0
        read = partial(self._state_store.read, is_static=is_static)
        election = await self._machine.workers.run(read)
        # If the previous process crashed, the last records that it has written may not be on the disk yet.
        # The log is synced now, because the core treats all its records as durable.
        await self._log.flush()
        self._core = RaftCore(
            local=self._local,
            voters=self._static_voters,
            log=StoredLogView(self._log, self.history),
            election=election,
            settings=self._config.raft,
            entropy=self._machine.entropy,
            membership=self._membership,
        )
        self.voice.voters_changed(self.voters)
        self._log.update_high_watermark(self._core.commit_offset)
        await self._subscriptions.committed(self._core.commit_offset)
        self.voice.started(self.now_ms)
        await self._carry_out(self._core.start(self.now_ms))
        await self._drain()
        self._pump = asyncio.create_task(self._run(), name="quorum")
        self._events.spawn(self._pruning.run())

    async def stop(self, grace_ms: int = 1000) -> None:
        """Resign, notify the other replicas (for at most ``grace_ms``), and end. The log stays open."""
        if self._is_stopped:
            return
        core = self._core
        if core is not None and self._failure is None and isinstance(core.role, Leader):
            self._events.submit(ev.ResignRequested(core.epoch))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_ms / 1000):
                    await self._others_know.wait()
        self._end(KafkaError(ErrorCode.broker_not_available, "the quorum has stopped on this node"))
        tasks = self._events.cancel()
        if self._pump is not None:
            self._pump.cancel()
            tasks.append(self._pump)
        await asyncio.gather(*tasks, return_exceptions=True)

    # Calls of the state machine that uses the log

    def add_listener(self, listener: QuorumListener) -> None:
        """Pass the latest snapshot, and then all later records, to ``listener``. This method may be called at
        any time."""
        self._subscriptions.add(listener)

    def append(self, values: Sequence[bytes], *, epoch: int | None = None) -> "asyncio.Future[int]":
        """Append records, which are committed or refused together. The result is the offset of the last
        record. It is set when the record is committed and the listeners of this node have applied it.

        Appends are written in the order of the calls, many of them in one batch. ``epoch`` is the epoch in
        which the records were decided (by default the current epoch). The future fails with
        ``KafkaError(not_controller)`` when this node does not lead that epoch. If the leadership is lost
        during the wait, the outcome is unknown.
        """
        if self._is_stopped or self._core is None:
            raise KafkaError(ErrorCode.broker_not_available, "the quorum does not run on this node")
        if not values:
            raise ValueError("there is nothing to append")
        future = self._appends.add(values, self._core.epoch if epoch is None else epoch)
        self._writer.schedule_append()
        return future

    def resign(self, epoch: int) -> None:
        """Resign the leadership of ``epoch``, because the state machine cannot continue."""
        self._events.submit(ev.ResignRequested(epoch))

    @property
    def leader_id(self) -> int | None:
        return self._core.leader_id if self._core else None

    @property
    def epoch(self) -> int:
        return self._core.epoch if self._core else 0

    @property
    def election(self) -> ElectionState:
        """Epoch, leader and vote of the core. Peers get only values that are already stored durably."""
        return self._core.election if self._core else ElectionState()

    @property
    def voters(self) -> VoterSet:
        """The current voters, as the log contains them. If the log contains no voters, the result is the
        static voters."""
        return self._core.voters if self._core else self._static_voters

    @property
    def observer_ids(self) -> frozenset[int]:
        """Ids of the nodes that fetch from this leader and do not vote. The result is empty while this node
        does not lead. Any thread may call this method."""
        role = self._core.role if self._core else None
        return frozenset(key.id for key in list(role.progress)) if isinstance(role, Leader) else frozenset()

    @property
    def kraft_version(self) -> int:
        """The kraft.version: 1 when the log names the voters (KIP-853)."""
        logged = self.history.latest
        return 0 if logged is None else logged.kraft_version

    @property
    def is_leader(self) -> bool:
        return self._core is not None and isinstance(self._core.role, Leader)

    @property
    def high_watermark(self) -> int:
        return self._core.commit_offset if self._core else 0

    def create_snapshot(
        self, end_offset: int, epoch: int, last_log_timestamp_ms: int
    ) -> SnapshotWriter | None:
        """Begin a snapshot of the state up to ``end_offset`` (exclusive). The last record of the snapshot has
        ``epoch``. After the caller has called ``freeze`` on the writer, it calls :meth:`snapshot_created`.
        Returns ``None`` when the snapshot already exists."""
        writer = self._log.create_snapshot(LogPosition(end_offset, epoch), last_log_timestamp_ms)
        logged = self.history.at(end_offset)
        if writer is not None and logged is not None:
            for key, value in snapshot_records(logged):
                writer.append_control(key, value)
        return writer

    async def snapshot_created(self) -> None:
        """Called when a snapshot is complete. Deletes older snapshots if the limits for the size or the age
        of the metadata log require it."""
        await self._pruning.prune()

    def describe(self) -> QuorumDescription:
        """State for DescribeQuorum. Raises ``KafkaError(not_leader_or_follower)`` if this node does not
        lead."""
        if self._core is None:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return describe(self._core, self._machine.clock.now_ms())

    async def change_voters(self, request: VoterChangeRequest) -> VoterChangeResponse:
        """Change the voters, and wait until the change is committed (KIP-853)."""
        response = await self._ask_core(request)
        assert isinstance(response, VoterChangeResponse)
        return response

    # Calls of the network

    async def handle_rpc(self, message: WireRequest) -> WireResponse:
        """Answer a peer. The answer to a fetch may wait. Never raises ``KafkaError``."""
        if self._is_stopped or self._core is None:
            return error_response(message, ErrorCode.broker_not_available)
        try:
            request = self._config.wire.from_request(message)
        except KafkaError as error:
            self.voice.refused(sender_of(message), error.code, self.now_ms, cluster_id=message.cluster_id)
            return error_response(message, error.code, error.message)
        self.voice.asked(request, self.now_ms)
        self.addresses.heard(endpoints_of_request(message))
        try:
            response = await self._ask_core(request)
        except KafkaError as error:
            return error_response(message, error.code, error.message)
        if response.error is not ErrorCode.none:
            self.voice.refused(sender_of(message), response.error, self.now_ms)
        leader = None if response.leader_id is None else self.addresses.find(response.leader_id)
        return to_response(self._config.wire, response, message, leader)

    async def _ask_core(self, request: Request) -> Response:
        if self._is_stopped or self._core is None:
            raise KafkaError(ErrorCode.broker_not_available, "the quorum does not run on this node")
        return await self._replies.ask(request)

    @property
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # The core's effects

    async def _carry_out(self, effects: list[fx.Effect]) -> None:
        """Carry out all effects of one step in the order of the core's contract."""
        for effect in effects:
            match effect:
                case fx.PersistElectionState(state):
                    is_static = self._core is None or self._core.is_static
                    write = partial(self._state_store.write, state, is_static=is_static)
                    await self._machine.workers.run(write)
                case fx.VotersChanged(voters):
                    self.voice.voters_changed(voters)
                case fx.Send():
                    self._events.spawn(self._send(effect))
                case fx.InstallSnapshot(snapshot_id):
                    await self._snapshots.install(snapshot_id)
                case fx.SendReply() | fx.ReplyWithRecords() | fx.ReplyWithSnapshot():
                    self._replies.run(effect)
                case fx.BecameLeader() | fx.BecameFollower() | fx.LeaderLost() | fx.LeadershipEnded():
                    self._leader_changed(effect)
                case fx.CommitAdvanced(offset):
                    self._log.update_high_watermark(offset)
                    await self._subscriptions.committed(offset)
                    self._appends.commit(offset)
                case fx.WriteSnapshotChunk() | fx.AbandonSnapshot():
                    self._snapshots.download(effect)
                case fx.FlushLog():
                    self._writer.start_flush()
                case fx.AppendAsLeader(_, epoch):
                    await self._writer.append_as_leader(epoch)
                case fx.RejectAppend():
                    self._writer.reject_append()
                case fx.AppendLeaderChange() | fx.AppendVoters():
                    self._writer.append_control(effect)
                case fx.AppendAsFollower(records):
                    self._writer.append_as_follower(records)
                case fx.TruncateLog(offset):
                    await self._writer.truncate(offset)
                case _:
                    assert_never(effect)

    def _leader_changed(
        self, effect: fx.BecameLeader | fx.BecameFollower | fx.LeaderLost | fx.LeadershipEnded
    ) -> None:
        """Report the result of an election, or the loss of a leader."""
        match effect:
            case fx.BecameLeader(epoch, epoch_start_offset):
                self.voice.led(self._local.id, epoch, self.now_ms)
                self._subscriptions.leader_changed(self._local.id, epoch, epoch_start_offset)
                return
            case fx.BecameFollower(epoch, leader_id):
                self.voice.led(leader_id, epoch, self.now_ms)
                self._subscriptions.leader_changed(leader_id, epoch)
            case fx.LeaderLost(epoch):
                self.voice.leader_lost(epoch, self.now_ms)
                self._subscriptions.leader_changed(None, epoch)
            case fx.LeadershipEnded(epoch):
                # The state machine did not request this resignation. The leader resigned because a majority
                # of the voters no longer fetched from it, or because it is no longer a voter.
                if epoch != self._resigned_epoch:
                    self.voice.majority_lost(epoch)
                self.voice.leader_lost(epoch, self.now_ms)
                self._subscriptions.leader_changed(None, epoch)
            case _:
                assert_never(effect)
        self._appends.fail(not_controller())

    async def _send(self, effect: fx.Send) -> None:
        """Send a request to a peer and queue its answer."""
        settings, node_id, asked_ms = self._config.raft, effect.node_id, self.now_ms
        timeout_ms = settings.request_timeout_ms + settings.fetch_max_wait_ms
        event: ev.Event = ev.RequestFailed(effect.correlation_id)
        try:
            message = self._config.wire.to_request(effect.request, self._membership.own)
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await self._sender.send(node_id, message)
        except (KafkaError, OSError, TimeoutError) as error:
            logger.debug("no answer from node %d: %s", node_id, error)
            reason = str(error) or f"no answer in {timeout_ms} ms"
            self.voice.failed(node_id, reason, asked_ms, self.now_ms)
        else:
            try:
                self.addresses.heard(endpoints_of_response(answer))
                response = from_response(answer)
            except KafkaError as error:
                self.voice.answered(node_id, error.code, effect.request, self.now_ms)
            else:
                self.voice.answered(node_id, response.error, effect.request, self.now_ms)
                event = ev.ResponseReceived(effect.correlation_id, response)
        self._events.submit(event)

    # Internal methods

    async def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._arm_timer()
                await self._events.wait()
                await self._drain()
        except Exception as error:
            # After any exception (also after an exception of a listener), the effects of this step are
            # incomplete. Therefore the driver must not send any more answers.
            self._fail(error)

    async def _drain(self) -> None:
        core = self._core
        assert core is not None
        while self._events and not self._is_stopped:
            event = self._events.pop()
            if isinstance(event, ev.ResignRequested):
                self._resigned_epoch = event.epoch
            await self._carry_out(core.step(event, self.now_ms))
            self.voice.tick(self.now_ms)
            if isinstance(core.role, Leader) or (isinstance(core.role, Resigned) and core.role.untold):
                self._others_know.clear()
            else:
                self._others_know.set()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._core.next_deadline_ms if self._core else None
        if deadline_ms is not None:
            # The wait is at least a millisecond, because the core's clock counts whole milliseconds.
            delay = max(1, deadline_ms + 1 - self.now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._events.submit, ev.Tick())

    def _fail(self, error: Exception) -> None:
        if self._failure is None and not self._is_stopped:
            self._failure = error
            logger.error("the quorum ends on node %d: %s", self._local.id, error)
            self._end(KafkaError(ErrorCode.kafka_storage_error, f"the quorum has failed: {error}"))
            if self._on_fatal is not None:
                self._on_fatal(error)

    def _end(self, error: KafkaError) -> None:
        self._is_stopped = True
        self._events.wake()
        if self._timer is not None:
            self._timer.cancel()
        self._appends.fail(error)
        self._replies.fail(error)
        with contextlib.suppress(KafkaError):
            self._snapshots.abandon()
