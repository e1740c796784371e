"""Clients with and without KIP-890 write transactions at each level of ``transaction.version``. The Java
producer chooses its version by the level, and librdkafka uses the version before KIP-890."""

import contextlib
import io
import json

import pytest
from confluent_kafka import Producer
from deadlines import TIMEOUT_S
from foreign_clients import Java
from test_transactions import create, values

from moldau.cli.main import main
from moldau.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from moldau.testing import Node

pytestmark = pytest.mark.java

LEVELS = (0, 1, 2)
TOOLS = "org.apache.kafka.tools"
RECORDS = 60


def set_level(node: Node, level: int) -> None:
    change = ["cluster", "upgrade", f"transaction.version={level}", "--bootstrap", node.bootstrap_servers]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*change, "--downgrade"] if level == 0 else change) == 0


def write_with_java(java: Java, node: Node, topic: str) -> None:
    """Write records in transactions of about a millisecond."""
    options = ["--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1"]
    transactions = ["--transactional-id", f"{topic}-java", "--transaction-duration-ms", "1"]
    servers = ["--bootstrap-server", node.bootstrap_servers]
    java.tool(f"{TOOLS}.ProducerPerformance", "--topic", topic, *options, *transactions, *servers)


def states(java: Java, node: Node) -> dict[str, list[tuple[int, int]]]:
    """Two values for each record of each transactional id: the version of the record, and the transaction
    version of the client."""
    shown = java.tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *["--bootstrap-server", node.bootstrap_servers, "--topic", TRANSACTION_STATE_TOPIC],
        *["--from-beginning", "--timeout-ms", "5000"],
        *["--formatter", f"{TOOLS}.consumer.TransactionLogMessageFormatter"],
    )
    found: dict[str, list[tuple[int, int]]] = {}
    # The formatter writes no line ends.
    for each in json.loads(f"[{shown.strip().replace('}{', '},{')}]"):
        value = each["value"]
        versions = value["version"], value["data"].get("clientTransactionVersion", 0)
        found.setdefault(each["key"]["data"]["transactionalId"], []).append(versions)
    return found


def test_clients_of_each_version_write_at_each_level(java: Java, node: Node, topic: str) -> None:
    old = Producer(
        {"bootstrap.servers": node.bootstrap_servers, "transactional.id": f"{topic}-old", "log_level": 0}
    )
    for level in LEVELS:
        set_level(node, level)
        name = f"{topic}-{level}"
        create(node.bootstrap_servers, name)
        if level == 0:
            old.init_transactions(TIMEOUT_S)
        for commits in (True, False):
            old.begin_transaction()
            old.produce(name, f"old {commits}", partition=0)
            old.flush()
            if commits:
                old.commit_transaction(TIMEOUT_S)
            else:
                old.abort_transaction(TIMEOUT_S)
        write_with_java(java, node, name)
        found = values(node.bootstrap_servers, name)
        assert found[0] == "old True"
        assert len(found) == 1 + RECORDS
    found_states = states(java, node)
    # The first record of an id has no transaction.
    by_level = [set(found_states[f"{topic}-{level}-java"][1:]) for level in LEVELS]
    assert by_level == [{(0, 0)}, {(1, 0)}, {(1, 2)}]
    assert {client for _, client in found_states[f"{topic}-old"]} == {0}
