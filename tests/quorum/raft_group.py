"""A group of raft cores that runs a script. Commands deliver, delay, duplicate or lose each message."""

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from golden_script import numbers, position, show
from raft_model import Entry, ModelLog
from voter_ids import voters_of

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core import messages as msg
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.raft import RaftCore, RaftInvariantError
from moldau.quorum.core.transitions import RoleName
from moldau.quorum.core.voters import Membership, ReplicaKey, Voter, VoterSet
from moldau.quorum.settings import RaftSettings
from moldau.runtime import SeededEntropy

MESSAGES_MAX = 500
"""If a command delivers more messages than this, the test assumes that the delivery never ends."""
SNAPSHOT_CHUNK = 3


class GivenChance(SeededEntropy):
    """Adds a fixed number of milliseconds to each election time-out."""

    def __init__(self, extra_ms: int) -> None:
        super().__init__(0)
        self.extra_ms = extra_ms

    def randrange(self, stop: int) -> int:
        return min(self.extra_ms, stop - 1)


@dataclass
class Message:
    """A message between two nodes. ``event`` is passed to its target, unless the target has restarted since
    the message was sent."""

    source: int
    target: int
    body: msg.Request | msg.Response
    event: ev.Event
    target_life: int

    @property
    def kind(self) -> str:
        return type(self.body).__name__

    def __str__(self) -> str:
        names = ("replica", "candidate", "leader_id") if self.kind.endswith("Request") else ()
        return show(self.body, without=(*names, "max_wait_ms"))[1:-1]


@dataclass
class Node:
    """The durable part of a node, and its running core."""

    key: ReplicaKey
    chance: GivenChance
    log: ModelLog = field(default_factory=ModelLog)
    election: ElectionState = field(default_factory=ElectionState)
    core: Any = None
    life: int = 0
    unflushed: bool = False
    download: list[Entry] = field(default_factory=list)
    answers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """For each request id, the destination of its response: the node that sent the request, the number of
    starts of this node, and the correlation id."""
    values: deque[str] = field(default_factory=deque)
    membership: Membership | None = None

    @property
    def id(self) -> int:
        return self.key.id


class Group:
    """Runs commands and returns lines. Syncs complete immediately, except after a command ``disk``."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.voters = VoterSet([])
        self.is_dynamic = False
        self.now_ms = 0
        self.settings = RaftSettings(snapshot_chunk_max_bytes=SNAPSHOT_CHUNK)
        self.messages: list[Message] = []
        self.parted: set[tuple[int, int]] = set()
        self.slow_disks: set[int] = set()
        self.lines: list[str] = []
        self._request_id = 0

    def run(self, command: str) -> str:
        """Run a command. The output is a list of events. After ``show`` it is the table."""
        self.lines = []
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{name}")([word for word in words if "=" not in word], options)
        return "\n".join(self.lines) or "  (nothing)"

    # Commands: nodes

    def do_group(self, _words: list[str], options: dict[str, str]) -> None:
        """``voters=1,2,3 observers=9 extra=0,100,200 log=1,1 epoch=1 leader=1``: create and start all nodes.

        ``extra`` is the number of milliseconds that are added to each node's shortest election time-out.
        ``leader`` is the node that times out first, is elected, and has committed the start of its epoch.
        """
        voters, observers = numbers(options["voters"]), numbers(options.get("observers", ""))
        self.is_dynamic = "voters.logged" in options
        self.voters = voters_of(*voters)
        bootstrap = tuple(-node_id for node_id in voters) if self.is_dynamic else ()
        if self.is_dynamic:
            self.voters = VoterSet([])
        extra_ms = numbers(options.get("extra", "")) or [100 * place for place in range(len(voters))]
        for place, node_id in enumerate([*voters, *observers]):
            key = ReplicaKey(node_id, uuid.UUID(int=node_id)) if self.is_dynamic else ReplicaKey(node_id)
            node = self.nodes[node_id] = Node(
                key, GivenChance(extra_ms[place] if place < len(extra_ms) else 0)
            )
            if self.is_dynamic or "describe" in options:
                own = Voter(ReplicaKey(node_id, uuid.UUID(int=node_id)))
                node.membership = Membership(own, bootstrap, auto_join=options.get("join") == "auto")
            epochs = numbers(options.get(f"log.{node_id}", options.get("log", "")))
            node.log.append([Entry(epoch, f"r{number}") for number, epoch in enumerate(epochs)])
            if self.is_dynamic and node_id in voters:
                formatted = (Voter(ReplicaKey(voter, uuid.UUID(int=voter))) for voter in voters)
                node.log.formatted_with = VoterSet(formatted)
                node.log.follow_voters()
            node.election = ElectionState(int(options.get("epoch", "0")))
            self._start(node)
        if "leader" in options:
            self.do_wait([], {"ms": str(self.settings.election_timeout_ms)})
            assert self.nodes[int(options["leader"])].core.role.name is RoleName.PROSPECTIVE
            self.do_deliver([], {})
        self.lines = []
        self.do_show([], {})

    def do_extra(self, words: list[str], options: dict[str, str]) -> None:
        """``1 ms=300``: node 1 waits 300 ms longer. The additional time begins with the node's next election
        time-out."""
        for node_id in map(int, words):
            self.nodes[node_id].chance.extra_ms = int(options["ms"])

    def do_start(self, words: list[str], _options: dict[str, str]) -> None:
        """``1 2``: start crashed nodes."""
        for node_id in map(int, words):
            self._start(self.nodes[node_id])

    def do_crash(self, words: list[str], options: dict[str, str]) -> None:
        """``1 2 [power=off]``: end the programs of these nodes. With ``power=off``, unsynced bytes are lost,
        too."""
        for node_id in map(int, words):
            node = self.nodes[node_id]
            node.core, node.life = None, node.life + 1
            if options.get("power") == "off":
                node.log.truncate(node.log.flushed)
            self.note(node_id, "crashes")

    def do_disk(self, words: list[str], options: dict[str, str]) -> None:
        """``1 sync=slow|done``: delay the syncs of a node, or complete them."""
        for node_id in map(int, words):
            node = self.nodes[node_id]
            if options["sync"] == "slow":
                self.slow_disks.add(node_id)
            else:
                self.slow_disks.discard(node_id)
                self._flush(node)

    def do_append(self, words: list[str], options: dict[str, str]) -> None:
        """``1 [count=2]``: append a client's records at a node that is the leader."""
        node = self.nodes[int(words[0])]
        for _ in range(int(options.get("count", "1"))):
            node.values.append("own")
            self._step(node, ev.AppendRequested(0, node.core.epoch))

    def do_resign(self, words: list[str], _options: dict[str, str]) -> None:
        """``1``: request a leader to resign."""
        node = self.nodes[int(words[0])]
        self._step(node, ev.ResignRequested(node.core.epoch))

    def do_change(self, words: list[str], options: dict[str, str]) -> None:
        """``1 add=4|remove=4|upgrade=1 [disk=7]``: request a change of the voters from a node."""
        node = self.nodes[int(words[0])]
        [(kind, text)] = [(name, value) for name, value in options.items() if name != "disk"]
        key = ReplicaKey(int(text), uuid.UUID(int=int(options.get("disk", text))))
        request: msg.VoterChangeRequest
        match kind:
            case "add":
                request = msg.AddVoterRequest(voter=Voter(key))
            case "remove":
                request = msg.RemoveVoterRequest(key=key)
            case _:
                request = msg.UpgradeVersionRequest(kraft_version=int(text))
        self._request_id += 1
        node.answers[self._request_id] = (0, 0, 0)
        self._step(node, ev.RequestReceived(self._request_id, request))

    def do_snapshot(self, words: list[str], options: dict[str, str]) -> None:
        """``1 id=4/1``: write a snapshot, and remove the log before it."""
        node, snapshot_id = self.nodes[int(words[0])], position(options["id"])
        node.log.snapshot(snapshot_id, tuple(node.log.entries[: snapshot_id.offset - node.log.start]))

    # Commands: time and the network

    def do_wait(self, _words: list[str], options: dict[str, str]) -> None:
        """``ms=1000``: move the time of all nodes forward, one node after the other. No message is
        delivered."""
        self.now_ms += int(options["ms"])
        for node in self.nodes.values():
            if node.core is not None:
                self._step(node, ev.Tick())

    def do_deliver(self, _words: list[str], options: dict[str, str]) -> None:
        """``[from=1] [to=2] [kind=Vote] [count=1]``: deliver these messages and the messages that they cause,
        oldest first."""
        limit = int(options.get("count", MESSAGES_MAX))
        for _ in range(limit):
            message = next(self._chosen(options, with_parted=False), None)
            if message is None:
                return
            self.messages.remove(message)
            self._arrive(message)
        assert limit < MESSAGES_MAX, "the group talks without end"

    def do_settle(self, _words: list[str], options: dict[str, str]) -> None:
        """``ms=500 [step=20]``: move the time forward in steps, and deliver all messages. Only changes are
        shown."""
        step_ms = int(options.get("step", "20"))
        shown = self.lines
        for _ in range(0, int(options["ms"]), step_ms):
            self.do_wait([], {"ms": str(step_ms)})
            self.do_deliver([], {})
        self.lines = [line for line in shown if "->" not in line]

    def do_drop(self, _words: list[str], options: dict[str, str]) -> None:
        """``[from=1] [to=2] [kind=Vote]``: lose these messages."""
        for message in list(self._chosen(options, with_parted=True)):
            self.messages.remove(message)
            self.note(message.source, f"-> {message.target}  lost: {message}")

    def do_double(self, _words: list[str], options: dict[str, str]) -> None:
        """Like ``drop``, but each message arrives twice. The command is only for requests, because each
        response has its own id."""
        for message in list(self._chosen(options, with_parted=True)):
            assert isinstance(message.event, ev.RequestReceived)
            node = self.nodes[message.target]
            self._request_id += 1
            node.answers[self._request_id] = node.answers[message.event.request_id]
            event = ev.RequestReceived(self._request_id, message.event.request)
            self.messages.append(
                Message(message.source, message.target, message.body, event, message.target_life)
            )

    def do_reverse(self, _words: list[str], _options: dict[str, str]) -> None:
        """Reverse the order of the waiting messages, so that the last message is delivered first."""
        self.messages.reverse()

    def do_part(self, words: list[str], _options: dict[str, str]) -> None:
        """``1>2 2>3``: delay messages in these directions."""
        self.parted |= {_direction(word) for word in words}

    def do_heal(self, words: list[str], _options: dict[str, str]) -> None:
        """``[1>2]``: release messages in this direction, or in all directions."""
        self.parted -= {_direction(word) for word in words} or set(self.parted)

    def do_show(self, _words: list[str], _options: dict[str, str]) -> None:
        """Show the table of all nodes."""
        self.lines.append("  node role         epoch leader voted durable committed log")
        for node in self.nodes.values():
            election = node.core.election if node.core else node.election
            role = node.core.role.name.value if node.core else "down"
            epochs = ",".join(str(entry.epoch) for entry in node.log.entries)
            row = (
                f"  {node.id:<4} {role:<12} {election.epoch:<5} {_or_dash(election.leader_id):<6} "
                f"{_or_dash(election.voted.id if election.voted else None):<5} {node.log.flushed:<7} "
                f"{_or_dash(node.core.commit_offset if node.core else None):<9} "
                + (f"{node.log.start}: " if node.log.start else "")
                + epochs
            )
            self.lines.append(row.rstrip())

    def note(self, node_id: int, text: str) -> None:
        self.lines.append(f"  {self.now_ms:>5} ms  {node_id} {text}")

    # Implementation

    def _chosen(self, options: dict[str, str], *, with_parted: bool) -> Iterable[Message]:
        for message in self.messages:
            if (
                options.get("from", str(message.source)) == str(message.source)
                and options.get("to", str(message.target)) == str(message.target)
                and message.kind.startswith(options.get("kind", ""))
                and (with_parted or (message.source, message.target) not in self.parted)
            ):
                yield message

    def _arrive(self, message: Message) -> None:
        target = self.nodes[message.target]
        if target.core is None or target.life != message.target_life:
            self.note(message.source, f"-> {message.target}  too late: {message}")
            self._connection_is_refused(message)
            return
        self.note(message.source, f"-> {message.target}  {message}")
        self._step(target, message.event)

    def _connection_is_refused(self, message: Message) -> None:
        if isinstance(message.event, ev.RequestReceived):
            target, request_id = self.nodes[message.target], message.event.request_id
            source_id, life, correlation_id = target.answers.pop(request_id)
            source = self.nodes[source_id]
            if source.core is not None and source.life == life:
                self._step(source, ev.RequestFailed(correlation_id))

    def _start(self, node: Node) -> None:
        node.life += 1
        node.log.flushed = node.log.log_end.offset
        node.download = []
        node.core = RaftCore(
            local=node.key,
            voters=self.voters,
            log=node.log,
            election=node.election,
            settings=self.settings,
            entropy=node.chance,
            membership=node.membership,
        )
        role = node.core.role
        self._carry_out(node, node.core.start(self.now_ms))
        self._note_role(node, role)

    def _step(self, node: Node, event: ev.Event) -> None:
        role = node.core.role
        try:
            effects = node.core.step(event, self.now_ms)
        except RaftInvariantError as error:
            self.note(node.id, f"INVARIANT {error}")
            return
        if node.core.role is not role:
            self._note_role(node, role)
        self._carry_out(node, effects)

    def _note_role(self, node: Node, before: Any) -> None:
        role = node.core.role
        if role is not before:
            leader_id = node.core.leader_id
            of = f" of {leader_id}" if role.name.value == "follower" else ""
            self.note(node.id, f"is {role.name.value}{of} in epoch {node.core.epoch}")

    def _carry_out(self, node: Node, effects: list[fx.Effect]) -> None:
        follow_ups: list[ev.Event] = []
        for effect in effects:
            match effect:
                case fx.Send(correlation_id, node_id, request):
                    self._send(node, correlation_id, node_id, request)
                case fx.SendReply(request_id, response):
                    self._reply(node, request_id, response)
                case fx.ReplyWithRecords(request_id, fetched, offset):
                    self._reply(node, request_id, _replace(fetched, records=node.log.read(offset, 4)))
                case fx.ReplyWithSnapshot(request_id, part, size):
                    content = node.log.snapshots[part.snapshot_id]
                    data = content[part.position : part.position + size]
                    self._reply(node, request_id, _replace(part, data=data))
                case fx.PersistElectionState(state):
                    node.election = state
                    self.note(node.id, f"stores {state}")
                case fx.VotersChanged(voters):
                    self.note(node.id, f"counts the voters {_names(voters)}")
                case fx.CommitAdvanced(offset):
                    self.note(node.id, f"commits up to {offset}")
                case _:
                    follow_ups += self._change_log(node, effect)
        for event in follow_ups:
            self._step(node, event)

    def _change_log(self, node: Node, effect: fx.Effect) -> list[ev.Event]:
        log = node.log
        match effect:
            case fx.AppendLeaderChange(epoch) | fx.AppendAsLeader(_, epoch):
                value = (
                    "leader change" if isinstance(effect, fx.AppendLeaderChange) else node.values.popleft()
                )
                self.note(node.id, f"appends {value} at {log.log_end.offset}")
                log.append([Entry(epoch, f"{value} {node.id}")])
                return [ev.LogAppended()]
            case fx.AppendVoters(epoch, voters):
                self.note(node.id, f"appends the voters {_names(voters)} at {log.log_end.offset}")
                log.append([Entry(epoch, "voters", voters)])
                return [ev.LogAppended()]
            case fx.AppendAsFollower(records):
                log.append([entry for entry in records if isinstance(entry, Entry)])
                return [ev.LogAppended()]
            case fx.RejectAppend(_, error):
                node.values.popleft()
                self.note(node.id, f"refuses to append: {error.name}")
            case fx.TruncateLog(offset):
                self.note(node.id, f"truncates its log to {offset}")
                log.truncate(offset)
                return [ev.LogTruncated()]
            case fx.FlushLog():
                node.unflushed = True
                if node.id not in self.slow_disks:
                    self._flush(node)
            case fx.WriteSnapshotChunk(_, start, data):
                node.download = [*node.download[:start], *data]  # type: ignore[list-item]
            case fx.InstallSnapshot(snapshot_id):
                self.note(node.id, f"installs the snapshot {snapshot_id}")
                log.begin_at(snapshot_id, tuple(node.download))
                return [ev.SnapshotInstalled(snapshot_id)]
            case fx.AbandonSnapshot(snapshot_id):
                self.note(node.id, f"abandons the snapshot {snapshot_id}")
        return []

    def _flush(self, node: Node) -> None:
        if node.unflushed and node.core is not None:
            node.unflushed = False
            node.log.flushed = node.log.log_end.offset
            self._step(node, ev.LogFlushed(node.log.flushed))

    def _send(self, node: Node, correlation_id: int, target_id: int, request: msg.Request) -> None:
        self._request_id += 1
        target = self.nodes[abs(target_id)]
        target.answers[self._request_id] = node.id, node.life, correlation_id
        event = ev.RequestReceived(self._request_id, request)
        self.messages.append(Message(node.id, target.id, request, event, target.life))

    def _reply(self, node: Node, request_id: int, response: msg.Response) -> None:
        source, life, correlation_id = node.answers.pop(request_id)
        if source == 0:
            assert isinstance(response, msg.VoterChangeResponse)
            text = f": {response.message}" if response.message else ""
            self.note(node.id, f"answers the change of voters by {response.error.name}{text}")
            return
        event = ev.ResponseReceived(correlation_id, response)
        self.messages.append(Message(node.id, source, response, event, life))


def _direction(word: str) -> tuple[int, int]:
    source, target = word.split(">")
    return int(source), int(target)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _names(voters: VoterSet) -> str:
    return ",".join(map(str, voters.ids)) or "none"


def _replace(response: Any, **changes: Any) -> Any:
    names = response.__dataclass_fields__
    return type(response)(**{name: changes.get(name, getattr(response, name)) for name in names})
