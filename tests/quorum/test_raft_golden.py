"""Golden scripts of one core: a command, ``----``, the core's effects and its state."""

from pathlib import Path
from typing import Any

import pytest
from golden_script import check_script, position, show
from raft_model import Entry, ModelLog
from voter_ids import voters_of

from moldau.quorum.core import effects as fx
from moldau.quorum.core import events as ev
from moldau.quorum.core import messages as msg
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.raft import RaftCore, RaftInvariantError
from moldau.quorum.core.voters import ReplicaKey
from moldau.quorum.settings import RaftSettings
from moldau.runtime import ErrorCode, SeededEntropy

GOLDEN = Path(__file__).parent / "golden"


class NoChance(SeededEntropy):
    """Every election time-out has the minimum length."""

    def randrange(self, stop: int) -> int:
        return 0


class Script:
    """Runs commands on one core. Writes to the log take effect immediately, but are flushed only by a
    command."""

    def __init__(self) -> None:
        self.core: Any = None
        self.log = ModelLog()
        self.now_ms = 0
        self.request_id = 0
        self.sent: dict[int, int] = {}
        self.lines: list[str] = []

    def run(self, command: str) -> str:
        self.lines = []
        name, *words = command.split()
        options = dict(word.split("=", 1) if "=" in word else (word, "yes") for word in words)
        try:
            getattr(self, f"do_{name}")(options)
        except RaftInvariantError as error:
            self.lines.append(f"INVARIANT {error}")
        role = self.core.role
        self.lines.append(
            f"  {self.now_ms} ms: {role.name.value} {self.core.election} {role.describe()}".rstrip()
        )
        return "\n".join(self.lines)

    # Commands

    def do_start(self, options: dict[str, str]) -> None:
        epochs = [int(epoch) for epoch in options.get("log", "").split(",") if epoch]
        self.log.append([Entry(epoch, f"r{number}") for number, epoch in enumerate(epochs)])
        if "snapshot" in options:
            snapshot_id = position(options["snapshot"])
            self.log.snapshot(snapshot_id, tuple(self.log.entries[: snapshot_id.offset]))
        self.core = RaftCore(
            local=ReplicaKey(int(options.get("node", "1"))),
            voters=voters_of(*map(int, options["voters"].split(","))),
            log=self.log,
            election=ElectionState(
                int(options.get("epoch", "0")),
                int(options["leader"]) if "leader" in options else None,
                ReplicaKey(int(options["voted"])) if "voted" in options else None,
            ),
            settings=RaftSettings(),
            entropy=NoChance(0),
        )
        self.carry_out(self.core.start(0))

    def do_wait(self, options: dict[str, str]) -> None:
        if "deadline" in options:
            self.now_ms = self.core.next_deadline_ms
        else:
            self.now_ms += int(options["ms"])
        self.step(ev.Tick())

    def do_vote(self, options: dict[str, str]) -> None:
        self.ask(
            msg.VoteRequest(
                candidate=ReplicaKey(int(options["from"])),
                epoch=int(options["epoch"]),
                log_end=position(options.get("end", "0/0")),
                pre_vote="pre" in options,
            )
        )

    def do_begin(self, options: dict[str, str]) -> None:
        self.ask(msg.BeginQuorumEpochRequest(leader_id=int(options["from"]), epoch=int(options["epoch"])))

    def do_end(self, options: dict[str, str]) -> None:
        successors = tuple(map(int, options["successors"].split(",")))
        leader_id, epoch = int(options["from"]), int(options["epoch"])
        self.ask(msg.EndQuorumEpochRequest(leader_id=leader_id, epoch=epoch, preferred_successors=successors))

    def do_fetch(self, options: dict[str, str]) -> None:
        self.ask(
            msg.FetchRequest(
                replica=ReplicaKey(int(options["from"])),
                epoch=int(options["epoch"]),
                log_end=position(options["end"]),
                max_wait_ms=int(options.get("wait", "500")),
                max_bytes=100,
                high_watermark=int(options.get("hw", msg.ANY_HIGH_WATERMARK)),
            )
        )

    def do_snapshot(self, options: dict[str, str]) -> None:
        self.ask(
            msg.FetchSnapshotRequest(
                replica=ReplicaKey(int(options["from"])),
                epoch=int(options["epoch"]),
                snapshot_id=position(options["id"]),
                position=int(options.get("at", "0")),
                max_bytes=100,
            )
        )

    def do_voted(self, options: dict[str, str]) -> None:
        self.answer(options, msg.VoteResponse(**self.common(options), granted="granted" in options))

    def do_begun(self, options: dict[str, str]) -> None:
        self.answer(options, msg.BeginQuorumEpochResponse(**self.common(options)))

    def do_fetched(self, options: dict[str, str]) -> None:
        epochs = [int(epoch) for epoch in options.get("records", "").split(",") if epoch]
        records: Any = tuple(Entry(epoch, "fetched") for epoch in epochs)
        self.answer(
            options,
            msg.FetchResponse(
                **self.common(options),
                high_watermark=int(options.get("hw", "-1")),
                diverging=position(options["diverging"]) if "diverging" in options else None,
                snapshot_id=position(options["snapshot"]) if "snapshot" in options else None,
                records=records,
            ),
        )

    def do_chunk(self, options: dict[str, str]) -> None:
        self.answer(
            options,
            msg.FetchSnapshotResponse(
                **self.common(options),
                snapshot_id=position(options["id"]),
                size_bytes=int(options["size"]),
                position=int(options["at"]),
                data=b"x" * int(options["bytes"]),
            ),
        )

    def do_installed(self, options: dict[str, str]) -> None:
        snapshot_id = position(options["id"])
        self.log.begin_at(snapshot_id, ())
        self.step(ev.SnapshotInstalled(snapshot_id))

    def do_failed(self, options: dict[str, str]) -> None:
        self.step(ev.RequestFailed(self.sent[int(options["from"])]))

    def do_append(self, options: dict[str, str]) -> None:
        self.step(ev.AppendRequested(7, int(options["epoch"])))

    def do_flushed(self, options: dict[str, str]) -> None:
        self.step(ev.LogFlushed(self.log.log_end.offset))

    def do_resign(self, options: dict[str, str]) -> None:
        self.step(ev.ResignRequested(self.core.epoch))

    # Implementation

    def common(self, options: dict[str, str]) -> dict[str, Any]:
        leader = options.get("leader")
        return {
            "error": ErrorCode[options.get("error", "none")],
            "leader_id": int(leader) if leader else None,
            "epoch": int(options["epoch"]),
        }

    def ask(self, request: msg.Request) -> None:
        self.request_id += 1
        self.step(ev.RequestReceived(self.request_id, request))

    def answer(self, options: dict[str, str], response: msg.Response) -> None:
        self.step(ev.ResponseReceived(self.sent[int(options["from"])], response))

    def step(self, event: ev.Event) -> None:
        self.carry_out(self.core.step(event, self.now_ms))

    def carry_out(self, effects: list[fx.Effect]) -> None:
        follow_ups: list[ev.Event] = []
        for effect in effects:
            self.lines.append(show(effect))
            match effect:
                case fx.Send(correlation_id, node_id):
                    self.sent[node_id] = correlation_id
                case fx.AppendLeaderChange(epoch) | fx.AppendAsLeader(_, epoch):
                    self.log.append([Entry(epoch, "own")])
                    follow_ups.append(ev.LogAppended())
                case fx.AppendVoters(epoch, voters):
                    self.log.append([Entry(epoch, "voters", voters)])
                    follow_ups.append(ev.LogAppended())
                case fx.AppendAsFollower(records):
                    self.log.append(list(records))  # type: ignore[arg-type]
                    follow_ups.append(ev.LogAppended())
                case fx.TruncateLog(offset):
                    self.log.truncate(offset)
                    follow_ups.append(ev.LogTruncated())
        for event in follow_ups:
            self.step(event)


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*.txt")))
def test_golden_script(name: str) -> None:
    check_script(GOLDEN / f"{name}.txt", Script().run)
