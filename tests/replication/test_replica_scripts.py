"""Golden scripts of whole groups of replicas: commands, ``----``, the states and the messages after them.

``pytest tests/replication/test_replica_scripts.py --rewrite`` rewrites the outputs, so that the diff can be
reviewed.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from replica_group import AlterAnswer, AlterRequest, FetchAnswer, FetchRequest, Group, News

from moldau.replication.core.policy import FSYNCED, WRITTEN
from moldau.replication.core.replica import Replica
from moldau.runtime import ErrorCode

SCRIPTS = sorted((Path(__file__).parent / "golden").glob("*.txt"))
KINDS = {
    "fetch": FetchRequest,
    "fetched": FetchAnswer,
    "alter": AlterRequest,
    "altered": AlterAnswer,
    "news": News,
}


class Script:
    """Runs commands on one group. A command is the name of a method and its operands, such as ``fetch 2``."""

    def __init__(self) -> None:
        self.group = Group(3, WRITTEN, 1)
        self.held: list[Any] = []

    def run(self, command: str) -> str:
        name, *words = command.split()
        getattr(self, f"do_{name}")(*words)
        self.group.check()
        waiting = [self.describe(message) for message in self.group.network]
        held = [f"held: {self.describe(message)}" for message in self.held]
        in_sync = sorted(self.group.controller.in_sync)
        controller = f"controller: leader={self.group.controller.leader} isr={in_sync}"
        return "\n".join([controller, str(self.group), *waiting, *held]) + "\n"

    @staticmethod
    def describe(message: Any) -> str:
        match message:
            case FetchRequest():
                offset, epoch = message.position.offset, message.position.last_fetched_epoch
                return f"-> fetch from {message.source} at {offset} after epoch {epoch}"
            case FetchAnswer():
                text = f"-> fetched by {message.target} {list(message.entries)} hw={message.high_watermark}"
                return text if message.diverging is None else f"{text} diverging={message.diverging}"
            case AlterRequest():
                members = ", ".join(f"{id} (epoch {epoch})" for id, epoch in message.proposal.members)
                return f"-> alter from {message.source}: {members}"
            case AlterAnswer():
                failure = "" if message.failure is None else f" {message.failure.name}"
                return f"-> altered, to {message.target}{failure}"
        return f"-> news to {message.target}"

    def do_group(self, policy: str, min_in_sync: str) -> None:
        policies = {"written": WRITTEN, "fsynced": FSYNCED}
        self.group = Group(3, policies[policy], int(min_in_sync))

    def do_start(self, *ids: str) -> None:
        for id in ids:
            self.group.start(int(id))
            self.do_deliver("news")

    def do_kill(self, id: str, power: str = "") -> None:
        self.group.kill(int(id), power=bool(power))

    def do_notice(self, id: str) -> None:
        self.group.notice(int(id))

    def do_move(self, id: str) -> None:
        self.group.move(int(id))

    def do_wait(self, ms: str) -> None:
        self.group.now_ms += int(ms)

    def do_produce(self, id: str, count: str = "1") -> None:
        for _ in range(int(count)):
            self.group.produce(int(id))

    def do_sync(self, *ids: str) -> None:
        for id in ids:
            self.group.sync(int(id))

    def do_fetch(self, id: str) -> None:
        self.group.fetch(int(id))

    def do_propose(self, id: str) -> None:
        self.group.propose(int(id))

    def do_give_up(self, id: str) -> None:
        self.group.give_up(int(id))

    def do_round(self, *ids: str) -> None:
        """Make one fetch for each follower, and process its response."""
        for id in ids:
            self.group.fetch(int(id))
            self.do_deliver("fetch")
            self.do_deliver("fetched")

    def do_hold(self, kind: str) -> None:
        """Delay messages of a kind until they are released."""
        chosen = [each for each in self.group.network if isinstance(each, KINDS[kind])]
        self.held += chosen
        self.do_drop(kind)

    def do_release(self) -> None:
        released, self.held = self.held, []
        for message in released:
            self.group.deliver(message)

    def do_drop(self, kind: str) -> None:
        self.group.network = [each for each in self.group.network if not isinstance(each, KINDS[kind])]

    def do_deliver(self, *kinds: str) -> None:
        for kind in kinds or KINDS:
            chosen = [each for each in self.group.network if isinstance(each, KINDS[kind])]
            self.do_drop(kind)
            for message in chosen:
                self.group.deliver(message)

    def do_announce(self) -> None:
        self.group.announce()

    def do_heal(self) -> None:
        self.group.heal()


def run_script(text: str) -> str:
    """The script with the current outputs."""
    script = Script()
    comments = re.match(r"(?:#.*\n)*\n", text)
    assert comments is not None
    written = [comments.group()]
    for block in re.split(r"\n\n+", text[comments.end() :].strip()):
        command = block.partition("\n----")[0].strip()
        outputs = [script.run(line) for line in command.splitlines() if not line.startswith("#")]
        written.append(f"{command}\n----\n{outputs[-1]}\n")
    return "".join(written).rstrip() + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    now = run_script(text)
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text(now)
    else:
        assert now == text


def test_the_script_of_fencing_shows_a_leader_that_counts_older_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replica, "check_epoch", lambda self, epoch: ErrorCode.none)
    with pytest.raises(AssertionError, match="3, in sync, lacks committed records"):
        run_script((Path(__file__).parent / "golden" / "fencing.txt").read_text())
