"""Kafka's verdicts on configurations: the cases, the JVM that checks them, and the golden table.

A case sets one key to a value, or sets several keys that Kafka checks together. A value is below, at or
beyond a limit, or is malformed text. The *surface* of a case is the place where the key is set, such as the
file of a broker (``static``) or a topic. The table in ``golden/kafka_verdicts.txt`` has a block for each
surface and key. A line with ``+`` has the values that Kafka accepts, and a line with ``-`` the values that
Kafka refuses.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
JARS = HERE.parents[1] / ".tools" / "jars"
GOLDEN = HERE / "golden" / "kafka_verdicts.txt"

TIMEOUT_S = 500

BASE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
    "log.dirs": "/tmp/logs",
    "remote.log.storage.system.enable": "true",
}
"""The base configuration of the surface ``static``. Each case adds its values to this configuration, or
replaces values in it.
"""

SURFACES_OF = {
    "broker": ("static", "dynamic-broker", "dynamic-default"),
    "topic": ("topic",),
    "group": ("group",),
    "client-metrics": ("client-metrics",),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the surface, and the values that are set there."""

    surface: str
    given: tuple[tuple[str, str], ...]

    @property
    def line(self) -> str:
        return "\t".join([self.surface, *(_escape(f"{key}={value}") for key, value in self.given)])


class Key(NamedTuple):
    """A key as Kafka defines it."""

    kind: str
    name: str
    type: str
    default: str | None
    update: str
    visibility: str
    bounds: str


_INTEGERS = {"SHORT": 15, "INT": 31, "LONG": 63}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TEXTS = {
    "listeners": ("PLAINTEXT://:9092", "PLAINTEXT://:9092,CONTROLLER://:9093", "PLAINTEXT:9092"),
    "advertised.listeners": ("PLAINTEXT://a:1", "PLAINTEXT://0.0.0.0:1", "SSL://a:1", "PLAINTEXT://a:70000"),
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAIN,CONTROLLER:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT",
        "PLAINTEXT:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    ),
    "controller.quorum.voters": ("1@localhost:9093", "2@localhost:1", "1@localhost", "1@a:70000", "1@a:0"),
    "controller.quorum.bootstrap.servers": ("a:1", "a", "a:70000", "a:1,b:2"),
    "controller.listener.names": ("CONTROLLER", "controller", "SSL", "PLAINTEXT", "CONTROLLER,SSL"),
    "early.start.listeners": ("CONTROLLER", "PLAINTEXT", "SSL"),
    "inter.broker.listener.name": ("PLAINTEXT", "CONTROLLER", "SSL"),
    "security.inter.broker.protocol": ("PLAINTEXT", "SSL", "plaintext"),
    "process.roles": ("broker", "controller", "broker,controller", "king"),
    "log.dirs": ("/a", "/a,/b", "/a,/a"),
    "log.dir": ("/a", "/a,/b"),
    "max.connections.per.ip.overrides": (
        "127.0.0.1:1",
        "127.0.0.1:0",
        "127.0.0.1:-1",
        "127.0.0.1",
        "127.0.0.1:x",
        "a:1,b:2",
        "127.0.0.1:2147483648",
        "[::1]:5",
        "127.0.0.1:1,",
    ),
    "log.cleanup.policy": ("compact", "delete", "compact,delete", "delete,delete", "COMPACT", "compact,"),
    "cleanup.policy": ("compact", "delete", "compact,delete", "delete,delete", "COMPACT", "compact,"),
    "compression.type": ("zstd", "none", "uncompressed", "ZSTD"),
    "leader.replication.throttled.replicas": ("*", "0:1", "0:1,1:2", "0", "0:x", "none", "*,0:1", "-1:2"),
    "follower.replication.throttled.replicas": ("*", "0:1", "0:1,1:2", "0", "0:x", "none", "*,0:1", "-1:2"),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
    "group.consumer.migration.policy": ("disabled", "DISABLED", "Upgrade", "downgrade", "both"),
    "group.coordinator.rebalance.protocols": (
        "classic",
        "consumer",
        "classic,consumer",
        "consumer,share,streams,classic",
    ),
    "group.consumer.assignors": ("uniform", "range", "uniform,range", "uniform,uniform", "no.such.Assignor"),
    "share.auto.offset.reset": (
        "latest",
        "earliest",
        "by_duration:P1D",
        "by_duration:PT1.5S",
        "by_duration:",
        "by_duration:-P1D",
        "by_duration:1D",
        "LATEST",
        "by_duration:P1Y",
    ),
    "share.isolation.level": ("read_committed", "read_uncommitted", "READ_COMMITTED"),
    "metadata.recovery.strategy": ("none", "rebootstrap", "NONE"),
    "metrics.recording.level": ("INFO", "DEBUG", "TRACE", "info"),
    "match": (
        "client_id=x",
        "client_id=[",
        "client_id",
        "client_id=",
        "no_such=x",
        "client_id=a,client_software_name=b",
        "client_id=a=b",
        " client_id = x ",
        "client_source_port=1.*",
    ),
    "metrics": ("*", "org.apache", "a,b"),
    "ssl.client.auth": ("required", "requested", "none", "NONE"),
    "sasl.enabled.mechanisms": ("PLAIN", "PLAIN,SCRAM-SHA-256", "PLAIN,PLAIN"),
    "sasl.mechanism.inter.broker.protocol": ("PLAIN",),
}


def single_cases(keys: Iterable[Key]) -> Iterator[Case]:
    """Cases with one value of one key."""
    for key in keys:
        if key.visibility == "internal":
            continue
        values = list(dict.fromkeys([*values_of(key), *_TEXTS.get(key.name, ())]))
        for surface in SURFACES_OF[key.kind]:
            if surface.startswith("dynamic") and key.update == "read-only":
                values = ["true", "1", key.default or ""]
            for value in values:
                yield Case(surface, ((key.name, value),))


def values_of(key: Key) -> list[str]:
    """Return test values of a key's type: at, below and beyond each limit, and malformed values."""
    match key.type:
        case "BOOLEAN":
            return ["true", "false", "TRUE", " true ", "yes", "", "1"]
        case "SHORT" | "INT" | "LONG":
            return _integers(key)
        case "DOUBLE":
            return _doubles(key)
        case "PASSWORD":
            return ["", "x"]
        case "LIST":
            return ["", ",", "a,,b", "a,a", "x", " ", *_quoted(key)]
        case _:
            return ["", " ", "x", *_quoted(key)]


def _integers(key: Key) -> list[str]:
    edge = 1 << _INTEGERS[key.type]
    around = {-edge, edge - 1, -5, 0, 10}
    around |= {bound for text in _NUMBER.findall(key.bounds) for bound in [int(text)]}
    if key.default is not None:
        around.add(int(key.default))
    near = {value + step for value in around for step in (-1, 0, 1)}
    malformed = ["", " ", "x", "1.5", "1e3", "0x10", "1_0", "--1", "+", "\u0663"]
    return [*map(str, sorted(near)), " 20000 ", "+20000", "020000", *malformed]


def _doubles(key: Key) -> list[str]:
    bounds = sorted({float(text) for text in _NUMBER.findall(key.bounds)} | {0.0, 1.0})
    near = [bound + step for bound in bounds for step in (-0.001, 0, 0.001)]
    malformed = ["", "x", "1_0", "nan", "inf", "0x1p-1", "0.5x"]
    return [
        *map(str, near),
        "-1",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "0.5d",
        "0.5f",
        " 0.5 ",
        ".5",
        "5.e-1",
        *malformed,
    ]


def _quoted(key: Key) -> list[str]:
    """The possible values, extracted from the description of a key's limits."""
    listed = re.fullmatch(r"(?:\(case insensitive\) )?\[([\w, -]+)\]", key.bounds)
    return [] if listed is None else [*listed[1].split(", "), listed[1].split(", ")[0].swapcase()]


def parse_keys(text: str) -> list[Key]:
    """Parse the lines that ``ConfigVerdicts.java keys`` prints. Each line is a key."""
    keys = []
    for line in text.splitlines():
        kind, name, type_, default, update, visibility, bounds = line.split("\t")
        keys.append(
            Key(kind, name, type_, None if default == "null" else default, update, visibility, bounds)
        )
    return sorted(keys)


def ask_kafka(java: str, *arguments: str, stdin: str = "") -> str:
    """Run the Java source beside this file on Kafka's jars."""
    options = ["-Xmx256m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    source = str(HERE / "java" / "ConfigVerdicts.java")
    done = subprocess.run(
        [java, *options, "-Duser.language=en", "-cp", f"{JARS}/*", source, *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def verdicts(java: str, cases: Sequence[Case]) -> list[bool]:
    """Let Kafka check the cases. Returns, for each case, whether Kafka accepts it."""
    base = "\t".join(["base", *(_escape(f"{key}={value}") for key, value in BASE.items())])
    shown = ask_kafka(java, stdin="\n".join([base, *(case.line for case in cases)]) + "\n")
    lines = shown.splitlines()
    assert len(lines) == len(cases)
    return [line == "ok" for line in lines]


def write_table(checked: Iterable[tuple[Case, bool]]) -> str:
    """The text of the golden table."""
    blocks: dict[tuple[str, tuple[str, ...]], dict[bool, list[list[str]]]] = {}
    for case, is_accepted in checked:
        block = blocks.setdefault((case.surface, tuple(key for key, _ in case.given)), {True: [], False: []})
        block[is_accepted].append([value for _, value in case.given])
    lines = []
    for (surface, names), block in blocks.items():
        lines.append(f"{surface} {' '.join(names)}")
        lines += [
            f"{sign} {json.dumps(block[was])}" for sign, was in (("+", True), ("-", False)) if block[was]
        ]
    return "\n".join(lines) + "\n"


def read_table(text: str) -> Iterator[tuple[Case, bool]]:
    """The cases of a golden table with Kafka's verdicts."""
    surface, names = "", [""]
    for line in text.splitlines():
        sign, _, rest = line.partition(" ")
        if sign not in ("+", "-"):
            surface, *names = line.split(" ")
            continue
        for values in json.loads(rest):
            yield Case(surface, tuple(zip(names, values, strict=True))), sign == "+"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def as_mapping(case: Case) -> Mapping[str, str]:
    """The values of a case, by key."""
    return dict(case.given)
