"""The Java client. One JVM makes all checks, and each check is a separate test here."""

import uuid

import pytest
from foreign_clients import Java

from moldau.testing import Node

pytestmark = pytest.mark.java

CHECKS = [
    *(f"codec-{codec}" for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
    "null-and-empty",
    "too-large",
    "list-offsets",
    "describe-topics",
    "describe-topic-partitions-cursor",
    "configs",
    "create-partitions",
    "delete-records",
    "cluster",
    "features",
    "log-dirs",
    "producers",
    "transactions",
    "transactional-offsets",
    "transaction-fencing",
    "transactions-described",
    "transactions-on-diskless",
    "acls-unknown",
    "config-resources",
    "quorum",
    "group",
    "rebalance-cooperative",
    "rebalance-range",
    "static-member",
    "topic-created-again",
]


_OUTCOMES: dict[str, dict[str, str]] = {}
"""The outcomes for each kind of topics. Tests run in random order, so tests of both kinds alternate. The
outcomes are stored here, so that the program runs only once for each kind."""


@pytest.fixture(scope="module")
def outcomes(java: Java, kind: str, node: Node) -> dict[str, str]:
    """The result of each check in ``java/JavaClients.java``. An empty text means success. Any other text is
    the reason of a failure."""
    if kind not in _OUTCOMES:
        _OUTCOMES[kind] = _run(java, node)
    return _OUTCOMES[kind]


def _run(java: Java, node: Node) -> dict[str, str]:
    shown = java.source("JavaClients", node.bootstrap_servers, f"java-{uuid.uuid4().hex[:8]}")
    found = {}
    for line in shown.splitlines():
        verdict, name = line.partition(":")[0].split()
        found[name] = "" if verdict == "ok" else line.partition(":")[2].strip()
    return found


def test_every_check_of_the_program_is_listed_here(outcomes: dict[str, str]) -> None:
    assert sorted(outcomes) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_java_client(outcomes: dict[str, str], check: str) -> None:
    assert outcomes[check] == ""
