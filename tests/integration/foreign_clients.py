"""Programs that are not Python: Kafka's Java tools, JavaScript clients and kcat."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / ".tools"
JARS = TOOLS / "jars"
METADATA_SHELL = TOOLS / "shell"
STREAMS = TOOLS / "streams"
JAVASCRIPT_PACKAGES = TOOLS / "node" / "node_modules"
TIMEOUT_S = 500
"""Time limit of one call of Java, which makes many checks. The limit is much longer than the checks need on a
busy machine."""


def require(available: bool, what: str) -> None:
    """If a tool is missing, skip the test visibly on a developer's machine, and fail it in CI."""
    if available:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI=true allows no skips")
    pytest.skip(f"{what} is missing (tools/fetch_clients.py fetches Kafka's jars and npm's packages)")


def run(command: list[str], *, stdin: str | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a program to its end and return its stdout. If the program fails, the error shows its stdout and
    stderr."""
    done = subprocess.run(
        command,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Java:
    """Starts a JVM for each call. This takes one to two seconds, so one call should make many checks."""

    program: str

    def command(self, *arguments: str) -> list[str]:
        # Only the serial collector and the first compiler are used, because runs are short and cores are few.
        options = ["-Xmx256m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [self.program, *options, "-cp", f"{JARS}/*:{METADATA_SHELL}/*", *arguments]

    def tool(self, main_class: str, *arguments: str, stdin: str | None = None) -> str:
        """Run one of Kafka's tools."""
        return run(self.command(main_class, *arguments), stdin=stdin)

    def tools(self, *calls: list[str]) -> list[str]:
        """Run several of Kafka's tools in one JVM. Returns their outputs."""
        joined = [word for call in calls for word in (";", *call)][1:]
        return _parts(self.source("Tools", *joined))

    def metadata_trees(self, *files: Path) -> list[str]:
        """Let Kafka's metadata shell load snapshots or segments of the metadata log. Returns the tree of each
        file as text."""
        return _parts(self.source("MetadataTrees", *map(str, files)))

    def source(self, name: str, *arguments: str) -> str:
        """Run ``java/<name>.java`` from its source."""
        return run(self.command(str(HERE / "java" / f"{name}.java"), *arguments))


def _parts(shown: str) -> list[str]:
    """The parts of an output that follow lines ``#### N``."""
    return [part.partition("\n")[2] for part in shown.split("#### ")[1:]]


@dataclass(frozen=True)
class JavaScript:
    """Node.js with the packages of ``tools/clients/package.json``."""

    program: str

    def script(self, name: str, *arguments: str) -> str:
        """Run ``javascript/<name>``."""
        packages = {"NODE_PATH": str(JAVASCRIPT_PACKAGES), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return run([self.program, str(HERE / "javascript" / name), *arguments], environment=packages)


@dataclass(frozen=True)
class Kcat:
    """kcat, the command line tool of librdkafka. Debian's package of kcat uses an older librdkafka."""

    program: str

    def __call__(self, bootstrap: str, *arguments: str, stdin: str | None = None) -> str:
        return run([self.program, "-b", bootstrap, *arguments], stdin=stdin)
