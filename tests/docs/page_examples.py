"""Finds the examples of the documentation in the Markdown files, and runs them against nodes of the test.

``python tests/docs/page_examples.py`` runs them all in one process, with one JVM. A block of Python, shell
or TOML is run. A comment before the block can change how it is run. There are four kinds of comments:

    <!-- not run: REASON -->
        The block is not run. The reason is one of ``REASONS``.
    <!-- before: COMMAND -->
        This command is run before the block, because the block needs it. The page does not show it, because
        the reader knows it.
    <!-- each line in a folder of its own -->
        Each line is run in a separate folder, because the lines are alternatives and not steps.
    <!-- until it prints a line: COMMAND -->
        The loop ``while True:`` of the block ends when this command prints a line. If it prints nothing for
        two minutes, the block fails.

Shell blocks are commands of ``moldau``, run by its ``main`` in this process. Some commands would run until
they are stopped, or would need a Spark cluster. So that such a command runs once and on this machine, its
options ``--follow``, ``--interval`` and ``--master`` are left out.
"""

import io
import os
import pathlib
import re
import shlex
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import moldau.testing
from moldau.cli.main import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"
RUN = ("python", "sh", "toml")
LANGUAGES = (*RUN, "properties", "text", "mermaid")
REASONS = (
    "it installs packages",
    "it is one of the makefile's targets",
    "it is an outline, not a program",
    "it needs a cluster of Spark: a test of its own submits it",
    "it needs segments in the object store: tests of dump-log read some",
    "it needs the store of a lost cluster: a test of its own restores one",
    "it needs scripts of Apache Kafka",
    "it needs several controllers",
    "it takes minutes",
)
REFERENCE = "docs/cli.md"
"""The page of the commands. Most of its examples come from the help of the commands, and tests of the
commands parse them."""
ELSEWHERE = ("docs/pipeline-notebook.md",)
"""A separate test runs this page, and checks its output."""
FILES = {
    "server.properties": "process.roles=broker,controller\nnode.id=1\nlog.dirs=formatted\n"
    "controller.quorum.voters=1@127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
    "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n",
    "controller.properties": "process.roles=controller\nnode.id=1\nlog.dirs=formatted\n"
    "controller.quorum.bootstrap.servers=127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
    "listeners=CONTROLLER://127.0.0.1:9093\n",
    "broker.properties": "process.roles=broker\nnode.id=11\nlog.dirs=formatted\n"
    "controller.quorum.bootstrap.servers=127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
    "listeners=PLAINTEXT://127.0.0.1:9092\n",
    "order.avsc": '{"type": "record", "name": "Order", "fields": [{"name": "total", "type": "long"}]}',
}
"""Content of the files that examples need, by name. A file is created in the folder in which the example
runs."""
UNTIL = "until it prints a line: "
LONGEST_LOOP_S = 120
LEFT_OUT = {"--follow": 0, "--interval": 1, "--master": 1}
"""Options that are removed when an example runs, with the number of values of each option."""
PROPERTIES = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.topic.num.partitions": "1",
    "remote.log.metadata.topic.replication.factor": "1",
    "diskless.metadata.topic.num.partitions": "1",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None
    before: tuple[str, ...] = ()
    apart: bool = False
    until: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass
class Setting:
    """The state that all blocks of a page share."""

    address: str
    names: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def pages() -> list[str]:
    """All pages of the documentation, the README and the page for contributors."""
    found = (ROOT / "docs").rglob("*.md")
    return ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in found)]


def blocks_of(page: str) -> Iterator[Block]:
    lines = (ROOT / page).read_text().splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        yield _block(page, lines, start, number)
        start = None


def _block(page: str, lines: list[str], start: int, end: int) -> Block:
    marks = []
    above = start - 1
    while above >= 0 and (match := re.fullmatch(r" *<!-- (.*) -->", lines[above])):
        marks.insert(0, match[1])
        above -= 1
    reasons = [mark.removeprefix("not run: ") for mark in marks if mark.startswith("not run: ")]
    return Block(
        page,
        start + 1,
        lines[start].lstrip().removeprefix("```").strip(),
        textwrap.dedent("\n".join(lines[start + 1 : end])),
        reasons[0] if reasons else None,
        tuple(mark.removeprefix("before: ") for mark in marks if mark.startswith("before: ")),
        "each line in a folder of its own" in marks,
        tuple(mark.removeprefix(UNTIL) for mark in marks if mark.startswith(UNTIL)),
    )


def to_run(page: str) -> list[Block]:
    found = [block for block in blocks_of(page) if block.language in RUN and page not in ELSEWHERE]
    return found[:1] if page == REFERENCE else found


def run_block(block: Block, setting: Setting) -> None:
    """Raises any exception of the block. Raises ``AssertionError`` if a command fails."""
    if not block.apart:
        prepare(block, setting)
    text = block.text.replace(ADDRESS, setting.address)
    if block.language == "python":
        for command in block.until:
            assert "while True:" in text
            text = text.replace("while True:", "for _ in rounds:")
            setting.names["rounds"] = rounds_until(command, setting)
        exec(compile(text, block.name, "exec"), setting.names)
    elif block.language == "toml":
        pathlib.Path("example.toml").write_text(text)
        from moldau.pipeline.jobs import read_jobs

        assert read_jobs("example.toml").jobs
    else:
        home = pathlib.Path.cwd()
        for number, line in enumerate(text.replace("\\\n", " ").splitlines()):
            if block.apart:
                folder = home / f"line-{block.line}-{number}"
                folder.mkdir()
                os.chdir(folder)
                prepare(block, setting)
            try:
                run_command(line, setting)
            finally:
                os.chdir(home)


def rounds_until(command: str, setting: Setting) -> Iterator[None]:
    """Iterate until the command prints something. Raises ``AssertionError`` after two minutes."""
    deadline = time.monotonic() + LONGEST_LOOP_S
    while not run_command(command, setting):
        assert time.monotonic() < deadline, f"{command} printed nothing"
        yield


def prepare(block: Block, setting: Setting) -> None:
    """Create the files that a block needs in the current folder, and run the commands of its ``before``
    comments."""
    for name, text in FILES.items():
        pathlib.Path(name).write_text(text)
    for command in block.before:
        run_command(command, setting)


def run_command(line: str, setting: Setting) -> str:
    """Run a line of a shell. It is ``moldau …``, a pipe that may begin with ``echo …``, or ``NAME=$(moldau
    …)``. Returns the output."""
    if assigned := re.fullmatch(r"(\w+)=\$\((.*)\)", line.strip()):
        setting.variables[assigned[1]] = _moldau(shlex.split(assigned[2])[1:], "").strip()
        return ""
    for name, value in setting.variables.items():
        line = line.replace(f"${name}", value)
    words = shlex.split(line, comments=True)
    if words[-1:] == ["&"]:
        words.pop()
    given = ""
    while words:
        end = words.index("|") if "|" in words else len(words)
        given = _run_words(words[:end], given)
        words = words[end + 1 :]
    return given


def _run_words(words: list[str], given: str) -> str:
    """Run one command of a pipe with its input. Returns its output."""
    if words[0] == "echo":
        return words[1] + "\n"
    if words[:2] in (["moldau", "dev"], ["moldau", "node"]):
        # The test has already started a node. ``test_page_commands.py`` parses this line.
        return ""
    assert words[0] == "moldau", f"not a command of moldau: {words}"
    left: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in LEFT_OUT:
            for _ in range(LEFT_OUT[word]):
                next(rest)
        else:
            left.append(word)
    return _moldau(left, given)


def _moldau(arguments: list[str], given: str) -> str:
    before = sys.stdin, sys.stdout
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    sys.stdout = told = io.TextIOWrapper(io.BytesIO(), write_through=True)
    try:
        code = main(arguments)
        text = told.buffer.getvalue().decode()  # type: ignore[attr-defined]
    finally:
        sys.stdin, sys.stdout = before
    print(f"  $ moldau {shlex.join(arguments)}")
    assert code == 0, f"moldau {shlex.join(arguments)} ended with {code}:\n{text}"
    return text


def run_page(page: str, root: str) -> int:
    """Run the blocks of a page in a new folder of ``root``, with a new node. Returns the number of blocks."""
    blocks = to_run(page)
    count = 0
    if not any(block.not_run is None for block in blocks):
        return 0
    home = pathlib.Path.cwd()
    is_diskless = page != "docs/tiered.md"
    folder = tempfile.mkdtemp(dir=root)
    with moldau.testing.Node(data=f"{folder}/data", diskless=is_diskless, properties=PROPERTIES) as node:
        os.chdir(folder)
        os.environ["MOLDAU_BOOTSTRAP"] = node.bootstrap_servers
        setting = Setting(node.bootstrap_servers)
        try:
            for block in blocks:
                if block.not_run is None:
                    began = time.monotonic()
                    print(f"{block.name} {block.language}", flush=True)
                    run_block(block, setting)
                    print(f"  {time.monotonic() - began:.1f} s", flush=True)
                    count += 1
        finally:
            setting.names.clear()  # closes clients that are still connected
            os.chdir(home)
    return count


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the commands are found as in an activated environment
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[2] --conf spark.ui.enabled=false pyspark-shell"
    # Spark's workers use the folder in which the JVM was started. Therefore this folder is kept until the
    # end.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as everything:
        total = sum(run_page(page, everything) for page in sys.argv[1:] or pages())
    print(f"{total} examples ran")
