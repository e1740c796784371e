"""Write the generated pages of docs/. They describe definitions in the code, so they are not written by hand.

``python tools/generate_docs.py`` writes the pages. ``--check`` only lists pages that are out of date, and
exits with 1 if there are any.
"""

import asyncio
import enum
import importlib
import pathlib
import re
import socket
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from moldau.cli.docs import cli_page
from moldau.cluster.broker_lifecycle import MOVES as BROKER_MOVES
from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.config.docs import configuration_page
from moldau.coordinators.groups.classic.states import TRANSITIONS as GROUP_TRANSITIONS
from moldau.network.client.rpc_client import RpcClient
from moldau.network.served import HandlerTable, served
from moldau.protocol.api import OWN_API_KEY_MIN, ApiKey
from moldau.protocol.coordinator_keys import CoordinatorKeyType
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.own import MODULES
from moldau.protocol.own.describe_own_apis import DescribeOwnApisRequest
from moldau.protocol.own.rights import Right
from moldau.quorum.core.transitions import LEGAL_MOVES as QUORUM_MOVES
from moldau.replication.core.role_names import mermaid as replica_diagram
from moldau.runtime import SeededEntropy
from moldau.testing import Node
from moldau.tiered.metadata.lifecycle import PARTITION_DELETE_TRANSITIONS, SEGMENT_TRANSITIONS

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"

_STATES = """# State machines

<!-- Written by `make docs` from the tables in the code. -->

## A replica of the metadata quorum

The diagram omits two moves that every role has: the move to *unattached* (a newer epoch) and the move to
*follower* (a known leader). The table has all moves.

```mermaid
{quorum}```

{quorum_moves}

## A replica of a partition

```mermaid
{replica}```

## A consumer group

```mermaid
{group}```

## A broker, as the controller sees it

```mermaid
{broker}```

## A segment in the remote tier

```mermaid
{segment}```

## The removal of a partition's remote data

```mermaid
{removal}```
"""

_PROTOCOL = """# Protocol

<!-- Written by `make docs` from a running node's response to ApiVersions. -->

This table lists the APIs and versions that a broker serves.

- **Other APIs.** If a client requests an API that is not in the table, the node closes the connection and
  logs the request.
- **Other versions** get the error UNSUPPORTED_VERSION, if the response has a field for an error. For
  ApiVersions, this response has version 0 (KIP-511). Produce is advertised from version 0, because old
  clients require that, but is served only from version 3.
- **Moldau's own APIs** have numbers from {own} on, which no Kafka API uses. They are never advertised.
  API 11600 lists the own APIs that a listener serves. [The table](#moldaus-own) names the right that each API
  requires: CLUSTER_ACTION or ALTER on the cluster, or READ on the topics that the request names.
  CLUSTER_ACTION is sufficient for all own APIs. FindCoordinator finds diskless coordinators by key type
  {key_type} and a coordinator's number.
- **Internal topics** (`__consumer_offsets`, `__diskless_metadata`, `__remote_log_metadata` and others) accept
  no records from clients. The response to Produce is INVALID_TOPIC_EXCEPTION, as in Kafka. Kafka makes an
  exception for the client id `__admin_client`, if its access control lists allow the request. Moldau has no
  access control lists yet, and does not make this exception. Kafka's tools do not need the exception.
- **Transactions** are supported on classic and diskless topics and for the offsets of groups
  ([Use transactions](howto/transactions.md)).

| key | API | versions |
|---:|---|---|
{rows}

## Moldau's own

| key | API | versions | right | effect of a request |
|---:|---|---|---|---|
{own_rows}
"""

_METRICS = """# Metrics

<!-- Written by `make docs` from the response of `/metrics` after the start of a node. -->

With `metrics.listener=HOST:PORT`, a node serves `/metrics` in Prometheus' text format, and `/health`
([metrics and health](operations.md#metrics-and-health)).

- **Names** are the same as those that the JMX exporter gives to Kafka's meters. Kafka's documentation
  describes these meters.
- **Series** of topics (`topic="…"`), requests (`request="…"`) and operations appear at their first event. A
  name has at most 2,000 series; further labels share the series `_other_`.
- **Rates**: counters whose names end in `PerSec` are totals; the scraper computes the rates.

The tables list the names that exist from the start of a node with diskless topics and remote storage.

## Kafka's

| name | kind | meaning |
|---|---|---|
{kafka}

## Moldau's own

| name | kind | meaning |
|---|---|---|
{own}

Jobs of `moldau pipeline run` have metrics of their own: see [jobs](pipeline.md#continuous-jobs).
"""


def diagram(moves: dict[str, list[str]]) -> str:
    """A Mermaid state diagram made from a table of moves."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {source} --> {target}" for source, targets in moves.items() for target in targets]
    return "\n".join(lines) + "\n"


def states_page() -> str:
    """docs/architecture/states.md."""

    def named(state: object) -> str:
        return str(getattr(state, "value", state)).replace(" ", "_")

    def tabled(transitions: Mapping[Any, frozenset[enum.Enum]]) -> dict[str, list[str]]:
        return {
            "[*]" if source is None else source.name: sorted(target.name for target in targets)
            for source, targets in transitions.items()
        }

    quorum: dict[str, list[str]] = {"[*]": ["unattached"]}
    for source, target in QUORUM_MOVES:
        if target.value not in ("unattached", "follower") or source.value == "unattached":
            quorum.setdefault(source.value, []).append(target.value)
    moves = [f"| {one.value} | {other.value} | {when} |" for (one, other), when in QUORUM_MOVES.items()]
    groups = {named(s): sorted(map(named, targets)) for s, targets in GROUP_TRANSITIONS.items()}
    broker = {named(s): sorted(map(named, targets)) for s, targets in BROKER_MOVES.items()}
    return _STATES.format(
        quorum=diagram(quorum),
        quorum_moves="\n".join(["| from | to | when |", "|---|---|---|", *moves]),
        replica=replica_diagram(),
        group=diagram(groups),
        broker=diagram(broker),
        segment=diagram(tabled(SEGMENT_TRANSITIONS)),
        removal=diagram(tabled(PARTITION_DELETE_TRANSITIONS)),
    )


_ALL_FEATURES = {
    "remote.log.storage.system.enable": "true",
    "remote.log.metadata.topic.replication.factor": "1",
    "diskless.metadata.topic.replication.factor": "1",
    "diskless.metadata.topic.num.partitions": "1",
}


def protocol_page() -> str:
    """docs/protocol.md."""
    with Node(diskless=True, properties=_ALL_FEATURES) as node:
        host, _, port = node.bootstrap_servers.rpartition(":")
        rows = asyncio.run(_served(host, int(port)))
        assert node._node is not None
        own = list(_own_rows(node._node.extensions.handlers))
    lines = [f"| {key} | {name} | {versions} |" for key, name, versions in rows]
    return _PROTOCOL.format(
        own=OWN_API_KEY_MIN,
        key_type=CoordinatorKeyType.DISKLESS.value,
        rows="\n".join(lines),
        own_rows="\n".join(own),
    )


_RIGHTS: Mapping[Right | None, str] = {
    Right.CLUSTER_ACTION: "CLUSTER_ACTION",
    Right.ALTER_CLUSTER: "ALTER",
    Right.READ_TOPIC: "READ",
}


def _own_rows(handlers: HandlerTable) -> Iterator[str]:
    """Each API of Moldau's own, with its right and the first paragraph of its module's docstring.

    This paragraph begins with the API's name. ``handlers`` are the handlers of a broker with all features.
    """
    rights = {key: decided.right for key, decided in DECIDED_APIS.items()}
    rights |= {key: served(handler).right for key, handler in handlers.items()}
    for key, (module, versions, _) in sorted(MODULES.items()):
        text = importlib.import_module(module, "moldau.protocol.own").__doc__ or ""
        name, _, meaning = text.split("\n\n")[0].replace("\n", " ").strip().partition(" ")
        name, meaning = name.rstrip(":"), meaning.rstrip(".")
        if meaning.startswith("(") and meaning.endswith(")"):
            meaning = meaning[1:-1]
        right = "" if key == DescribeOwnApisRequest.API_KEY else _RIGHTS[rights[key]]
        range_ = versions if "-" in versions else f"{versions}-{versions}"
        yield f"| {key} | {name} | {range_} | {right} | {meaning} |"


async def _served(host: str, port: int) -> list[tuple[int, str, str]]:
    client = RpcClient(SeededEntropy(1), client_id="docs")
    request = ApiVersionsRequest(client_software_name="docs", client_software_version="1")
    try:
        answer = await client.request(host, port, ApiKey.API_VERSIONS, None, request)
    finally:
        await client.close()
    return [
        (
            row.api_key,
            "".join(part.capitalize() for part in ApiKey(row.api_key).name.split("_")),
            f"{row.min_version}-{row.max_version}",
        )
        for row in answer.api_keys
    ]


def metrics_page() -> str:
    """docs/metrics.md."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    properties = {"metrics.listener": f"127.0.0.1:{port}", **_ALL_FEATURES}
    with Node(diskless=True, properties=properties):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
        text = answer.read().decode()
    return _METRICS.format(
        kafka="\n".join(_metric_rows(text, "kafka", "org")), own="\n".join(_metric_rows(text, "moldau"))
    )


def _metric_rows(text: str, *prefixes: str) -> Iterator[str]:
    """The metric families of a Prometheus text whose names begin with one of ``prefixes``."""
    help_texts = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        if name.startswith(prefixes):
            yield f"| `{name}` | {kind} | {help_texts.get(name, '')} |"


def pages() -> dict[pathlib.Path, str]:
    """Every generated page, with the content that it should have."""
    return {
        DOCS / "cli.md": cli_page(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "architecture" / "states.md": states_page(),
        DOCS / "metrics.md": metrics_page(),
        DOCS / "protocol.md": protocol_page(),
    }


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = 0
    for path, content in pages().items():
        if path.exists() and path.read_text() == content:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs")
        else:
            path.write_text(content)
            print(f"wrote {path.relative_to(DOCS.parent)}")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
