"""Kafka's tools for replicas: reassignments, log directories, elections, throttles and checks of replicas.

The tests share one cluster and three JVMs, because the start of a JVM takes seconds.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import Java
from kafka_nodes import LIMIT_S, moldau, wait_for

from moldau.testing import Cluster

pytestmark = [pytest.mark.java, pytest.mark.real_time]

TOOLS = "org.apache.kafka.tools"
REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
TOPICS = f"{TOOLS}.TopicCommand"
ELECTIONS = f"{TOOLS}.LeaderElectionCommand"
CONFIGS = "kafka.admin.ConfigCommand"
VALUE = b"v" * 10_000
COUNT = 40
SLOW, FAST = "1000", "100000000"
PROPERTIES = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "1500",
    "auto.leader.rebalance.enable": "false",
    # A fetch returns only a small part of a replica. So a copy needs several fetches, and a throttle delays
    # the end of the copy.
    "replica.fetch.max.bytes": "20000",
}
PLACES = {
    "moved": [[1]],
    "cancelled": [[1]],
    "between": [[1]],
    "checked": [[1, 2], [2, 1]],
    "unclean": [[3]],
    "minimum": [[1, 3]],
    "turned": [[2, 1]],
}


def partition(topic: str, *replicas: int, log_dirs: tuple[str, ...] = ()) -> dict[str, Any]:
    dirs = {"log_dirs": list(log_dirs)} if log_dirs else {}
    return {"topic": topic, "partition": 0, "replicas": list(replicas), **dirs}


class Files:
    """The JSON files of the tools."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def moves(self, name: str, *rows: dict[str, Any]) -> list[str]:
        """The command line option for a file of reassignments."""
        return ["--reassignment-json-file", self._write(name, {"version": 1, "partitions": rows})]

    def topics(self, *names: str) -> list[str]:
        """The command line option for a file of topics."""
        topics = [{"topic": name} for name in names]
        return ["--topics-to-move-json-file", self._write("topics", {"version": 1, "topics": topics})]

    def partitions(self, *names: str) -> list[str]:
        """The command line option for a file of partitions that need a leader election."""
        rows = [{"topic": name, "partition": 0} for name in names]
        return ["--path-to-json-file", self._write("elections", {"partitions": rows})]

    def _write(self, name: str, content: dict[str, Any]) -> str:
        path = self._folder / f"{name}.json"
        path.write_text(json.dumps(content))
        return str(path)


def written(admin: AdminClient, servers: str) -> None:
    """Create the topics, with records in each partition."""
    new = [NewTopic(topic, len(rows), replica_assignment=rows) for topic, rows in PLACES.items()]
    new[-2].config = {"min.insync.replicas": "2"}
    for created in admin.create_topics(new).values():
        created.result(LIMIT_S)
    producer = Producer({"bootstrap.servers": servers, "acks": "1", "batch.size": 15_000})
    for topic, rows in PLACES.items():
        for index in range(len(rows)):
            for _ in range(COUNT):
                producer.produce(topic, VALUE, partition=index)
    assert producer.flush(LIMIT_S) == 0


def directories(servers: str, broker_id: int) -> dict[str, set[str]]:
    """The replicas in each log directory of a broker. The name of a copy in progress has a plus sign."""
    shown = json.loads(moldau("brokers", "log-dirs", str(broker_id), "--json", "--bootstrap", servers))
    return {
        row["path"]: {f"{one['topic']}-{one['partition']}{'+' * one['copying']}" for one in row["replicas"]}
        for row in shown
    }


def fenced(servers: str) -> list[int]:
    brokers = json.loads(moldau("brokers", "list", "--json", "--bootstrap", servers))["brokers"]
    return [row["id"] for row in brokers if row["fenced"]]


def rows_of(shown: str) -> list[str]:
    """The topics with partitions in the output of ``kafka-topics --describe``."""
    return sorted("-".join(found) for found in re.findall(r"Topic: (\S+)\tPartition: (\d+)", shown))


def test_moves_elections_and_throttles_by_kafkas_tools(java: Java, tmp_path: Path) -> None:
    with Cluster(brokers=3, controllers=1, log_dirs=2, properties=PROPERTIES) as cluster:
        servers, files = cluster.bootstrap_servers, Files(tmp_path)
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        written(admin, servers)
        home, other = cluster.log_dirs(1)
        if "between-0" in directories(servers, 1)[other]:
            home, other = other, home
        verification = java.command(
            f"{TOOLS}.ReplicaVerificationTool",
            *("--broker-list", servers, "--topics-include", "checked", "--report-interval-ms", "500"),
        )
        with subprocess.Popen(verification, stdout=subprocess.PIPE, text=True) as checking:
            begin_moves(java, cluster, files, (home, other))
            assert checking.stdout is not None
            report = next(line for line in checking.stdout if "max lag" in line)
            checking.kill()
        assert "max lag is 0" in report
        assert f"at offset {COUNT} among 2 partitions" in report

        def moved() -> bool:
            on_2 = [name for names in directories(servers, 2).values() for name in names]
            return "moved-0" in on_2 and "between-0" in directories(servers, 1)[other]

        wait_for(lambda: moved() and "moved-0" not in set().union(*directories(servers, 1).values()))
        # Moldau's own command moves the replica back.
        assert moldau("brokers", "move-replicas", "1", "between", "--to", home, "-y", "--bootstrap", servers)
        assert "between-0" in directories(servers, 1)[home]
        cluster.kill(3)
        wait_for(lambda: fenced(servers) == [3])
        after_moves(java, servers, files)


def begin_moves(java: Java, cluster: Cluster, files: Files, folders: tuple[str, str]) -> None:
    servers = ["--bootstrap-server", cluster.bootstrap_servers]
    reassign = [REASSIGN, *servers]
    copied = files.moves("copied", partition("moved", 2, log_dirs=(cluster.log_dirs(2)[1],)))
    inside = files.moves("inside", partition("between", 1, log_dirs=(folders[1],)))
    cancelled = files.moves("cancelled", partition("cancelled", 2))
    unclean = files.moves("unclean", partition("unclean", 3, 2))
    rates = f"leader.replication.throttled.rate={FAST},follower.replication.throttled.rate={FAST}"
    rates += f",replica.alter.log.dirs.io.max.bytes.per.second={FAST}"
    of_broker = [CONFIGS, *servers, "--entity-type", "brokers", "--entity-name"]
    answers = java.tools(
        [*reassign, "--generate", *files.topics("moved"), "--broker-list", "2"],
        [*reassign, "--execute", *copied, "--throttle", SLOW],
        [*reassign, "--execute", *inside, "--replica-alter-log-dirs-throttle", SLOW, "--additional"],
        [*reassign, "--execute", *cancelled, "--throttle", SLOW, "--additional"],
        [*reassign, "--execute", *unclean, "--throttle", SLOW, "--additional"],
        [*reassign, "--list"],
        [*reassign, "--verify", "--preserve-throttles", *copied],
        [*reassign, "--verify", "--preserve-throttles", *inside],
        [f"{TOOLS}.LogDirsCommand", *servers, "--describe", "--topic-list", "between"],
        [*reassign, "--cancel", "--preserve-throttles", *cancelled],
        [*reassign, "--list"],
        [*of_broker, "1", "--describe"],
        [CONFIGS, *servers, "--entity-type", "topics", "--entity-name", "moved", "--describe"],
        [*of_broker, "1", "--alter", "--add-config", rates],
        [*of_broker, "2", "--alter", "--add-config", rates],
    )
    assert '"replicas":[2]' in answers[0].partition("Proposed")[2]
    assert "The inter-broker throttle limit was set to 1000 B/s" in answers[1]
    assert f"Successfully started moving log directory to {cluster.log_dirs(2)[1]} for replica" in answers[1]
    assert "moved-0: replicas: 2,1. adding: 2. removing: 1." in answers[5]
    assert "cancelled-0: replicas: 2,1. adding: 2. removing: 1." in answers[5]
    assert "Reassignment of partition moved-0 is still in progress." in answers[6]
    assert "Reassignment of replica between-0-1 is still in progress." in answers[7]
    copies = json.loads(answers[8].splitlines()[-1])["brokers"][0]["logDirs"]
    found = {row["logDir"]: row["partitions"] for row in copies}
    assert [(row["isFuture"], row["offsetLag"]) for row in found[folders[0]]] == [(False, 0)]
    assert [row["isFuture"] for row in found[folders[1]]] == [True]
    assert found[folders[1]][0]["offsetLag"] > 0
    assert "Successfully cancelled partition reassignment for: cancelled-0" in answers[9]
    assert "cancelled-0" not in answers[10]
    assert f"leader.replication.throttled.rate={SLOW} " in answers[11]
    assert "leader.replication.throttled.replicas=0:1 " in answers[12]
    assert "follower.replication.throttled.replicas=0:2 " in answers[12]


def after_moves(java: Java, servers: str, files: Files) -> None:
    server = ["--bootstrap-server", servers]
    reassign, elect = [REASSIGN, *server], [ELECTIONS, *server]
    describe = [TOPICS, *server, "--describe", "--exclude-internal"]
    copied = files.moves("copied", partition("moved", 2, log_dirs=("any",)))
    kept = files.moves("kept", partition("unclean", 2), partition("turned", 1, 2))
    answers = java.tools(
        [*describe, "--under-replicated-partitions"],
        [*describe, "--under-min-isr-partitions"],
        [*describe, "--at-min-isr-partitions"],
        [*describe, "--unavailable-partitions"],
        [*elect, "--election-type", "unclean", "--topic", "unclean", "--partition", "0"],
        [*reassign, "--execute", "--additional", *kept],
        [*elect, "--election-type", "preferred", *files.partitions("turned", "moved")],
        [*elect, "--election-type", "preferred", "--topic", "turned", "--partition", "0"],
        [*describe, "--topic", "turned"],
        # The throttles are removed only if no move is in progress.
        [*reassign, "--verify", *copied],
        [CONFIGS, *server, "--entity-type", "brokers", "--entity-name", "1", "--describe"],
        [CONFIGS, *server, "--entity-type", "topics", "--entity-name", "moved", "--describe"],
    )
    assert rows_of(answers[0]) == ["minimum-0", "unclean-0"]
    assert rows_of(answers[1]) == ["minimum-0", "unclean-0"]
    assert rows_of(answers[2]) == ["between-0", "cancelled-0", "moved-0"]
    assert rows_of(answers[3]) == ["unclean-0"]
    assert "Successfully completed leader election (UNCLEAN) for partitions unclean-0" in answers[4]
    assert "Successfully completed leader election (PREFERRED) for partitions turned-0" in answers[6]
    assert "Valid replica already elected for partitions" in answers[7]
    assert "Leader: 1\tReplicas: 1,2\tIsr: " in answers[8]
    assert "Reassignment of partition moved-0 is completed." in answers[9]
    assert "Clearing topic-level throttles on topic moved" in answers[9]
    assert "throttled" not in answers[10] + answers[11]
