"""Moves by ``topics reassign`` and ``brokers decommission``. A topic with one replica gets three replicas,
and all replicas move away from a broker."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import moldau.testing
from moldau.cluster.internal_topics import CONSUMER_OFFSETS_TOPIC

LIMIT_S = 120
VALUES = b"".join(b"value-%d\n" % number for number in range(500))


@pytest.fixture(scope="module")
def cluster() -> "Iterator[moldau.testing.Cluster]":
    # A fetch returns only a small part of a replica, so a throttle delays the end of a copy.
    small = {"replica.fetch.max.bytes": "10000"}
    with moldau.testing.Cluster(brokers=4, racks=("a", "b", "c", "a"), properties=small) as running:
        yield running


@pytest.fixture
def at(cli: Any, cluster: moldau.testing.Cluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", cluster.bootstrap_servers)
    return cli


def replicas_of(at: Any, topic: str) -> list[list[int]]:
    """The replicas of each partition, all of which must be in sync."""
    rows = json.loads(at("topics", "describe", topic, "--json").out)[0]["partitions"]
    assert all(sorted(row["isr"]) == sorted(row["replicas"]) for row in rows)
    return [row["replicas"] for row in rows]


def values(at: Any, topic: str) -> set[bytes]:
    return set(at("consume", topic).out.encode().splitlines())


@pytest.mark.real_time
def test_one_replica_becomes_three_and_a_broker_is_emptied(at: Any) -> None:
    assert at("topics", "create", "orders", "-p", "3", "-r", "1").code == 0
    assert at("produce", "orders", stdin=VALUES).code == 0
    # The consumer group causes the creation of __consumer_offsets, with one replica of each partition.
    assert at("consume", "orders", "--group", "g").code == 0
    before = replicas_of(at, "orders")

    planned = at("topics", "reassign", "-r", "3", "--dry-run", "--json")
    assert {len(move["to"]) for move in json.loads(planned.out)} == {3}
    assert replicas_of(at, "orders") == before
    moved = at("topics", "reassign", "-r", "3", "--yes")
    assert (moved.code, moved.err.splitlines()[-1]) == (0, "all moves are done")
    racks = {1: "a", 2: "b", 3: "c", 4: "a"}
    for topic in ("orders", CONSUMER_OFFSETS_TOPIC):
        assert all(len({racks[each] for each in one}) == 3 for one in replicas_of(at, topic))
    assert values(at, "orders") == set(VALUES.splitlines())
    assert at("topics", "reassign", "-r", "3").out == "nothing to move\n"

    assert at("brokers", "decommission", "2", "--yes", "--throttle", "10000000").code == 0
    kinds = [("topic", "orders"), *(("broker", str(each)) for each in racks)]
    throttles = [at("configs", "describe", kind, name, "--json").out for kind, name in kinds]
    assert not any("throttled" in one for one in throttles)
    for topic in ("orders", CONSUMER_OFFSETS_TOPIC):
        assert all(2 not in one and len(one) == 3 for one in replicas_of(at, topic))
    assert values(at, "orders") == set(VALUES.splitlines())
    assert at("consume", "orders", "--group", "g").out == ""  # the group had already read all records


@pytest.mark.real_time
def test_a_partition_continues_on_other_brokers_and_its_past_follows(at: Any) -> None:
    def chunks() -> list[dict[str, Any]]:
        return list(json.loads(at("chunks", "list", "--topic", "past", "--json").out))

    at("topics", "create", "past", "-r", "2")
    chunk = ("chunks", "create", "--topic", "past", "-p", "0")
    refused = at(*chunk, "--replicas", "1,2")
    assert (refused.code, "raise it with `moldau cluster upgrade moldau.chunk.version=1`" in refused.err) == (
        1,
        True,
    )
    assert at("cluster", "upgrade", "moldau.chunk.version=1").code == 0
    assert at("produce", "past", stdin=VALUES).code == 0
    for replicas, reason in (("1", "INVALID_REPLICATION_FACTOR"), ("1,9", "INVALID_REPLICA_ASSIGNMENT")):
        refused = at(*chunk, "--replicas", replicas)
        assert (refused.code, reason in refused.err) == (1, True)
    before = replicas_of(at, "past")[0]
    others = [each for each in (1, 2, 3, 4) if each not in before]
    made = json.loads(at(*chunk, "--replicas", ",".join(map(str, others)), "--json").out)
    assert (made["start_offset"], made["replicas"]) == (500, others)
    assert at("produce", "past", stdin=b"later\n").code == 0
    assert values(at, "past") == {*VALUES.splitlines(), b"later"}
    table = at("topics", "describe", "past").out
    assert "CHUNK START" in table
    assert [(row["active"], sorted(row["replicas"])) for row in chunks()] == [
        (False, sorted(before)),
        (True, sorted(others)),
    ]

    move = ("chunks", "alter", "--topic", "past", "-p", "0", "--start-offset", "0")
    active = at("chunks", "alter", "--topic", "past", "-p", "0", "--start-offset", "500", "--replicas", "1,2")
    assert (active.code, "the active one" in active.err) == (1, True)
    assert at(*move, "--replicas", ",".join(map(str, others))).code == 0
    while sorted(chunks()[0]["isr"]) != others:  # brokers are listed in the order in which they caught up
        pass
    assert chunks()[0]["replicas"] == others
    assert (
        at(*move, "--cancel").err
        == "moldau: past-0 at 0: NO_REASSIGNMENT_IN_PROGRESS: No move of the chunk is in progress\n"
    )
    assert values(at, "past") == {*VALUES.splitlines(), b"later"}
    compacted = at("topics", "alter", "past", "--config", "cleanup.policy=compact")
    assert (compacted.code, "Topic past has chunks" in compacted.err) == (1, True)


@pytest.mark.real_time
def test_moves_in_progress_are_shown_and_cancelled_or_awaited(at: Any) -> None:
    """The moves may come from any tool, or from a command that was interrupted."""
    topics = ("slow", "steady")
    for topic in topics:
        at("topics", "create", topic, "-r", "1")
        for _ in range(10):  # each command writes a batch
            assert at("produce", topic, stdin=VALUES).code == 0
    before = {topic: replicas_of(at, topic) for topic in topics}
    assert at("topics", "moves").out == "no moves in progress\n"

    def throttle(rate: int) -> None:
        rates = [f"{side}.replication.throttled.rate={rate}" for side in ("leader", "follower")]
        for broker in "1234":
            assert at("configs", "alter", "broker", broker, "-s", rates[0], "-s", rates[1]).code == 0

    throttle(1)
    for topic in topics:
        both = [f"{side}.replication.throttled.replicas=*" for side in ("leader", "follower")]
        at("configs", "alter", "topic", topic, "-s", both[0], "-s", both[1])
        assert at("topics", "reassign", topic, "-r", "3", "--no-wait", "--yes").code == 0
    shown = {row["topic"]: row for row in json.loads(at("topics", "moves", "--json").out)}
    assert {topic: [row["from"]] for topic, row in shown.items()} == before
    assert {len(row["to"]) for row in shown.values()} == {3}
    assert at("topics", "moves", "--wait", "--cancel").code == 2

    cancelled = at("topics", "moves", "slow", "--cancel", "--yes")
    assert (cancelled.code, cancelled.err) == (0, "1 moves are cancelled\n")
    assert replicas_of(at, "slow") == before["slow"]
    assert "throttled" not in at("configs", "describe", "topic", "slow").out
    # The other move keeps its throttle.
    assert "throttled" in at("configs", "describe", "topic", "steady").out
    taking_part = shown["steady"]["to"]
    assert all("throttled" in at("configs", "describe", "broker", str(one)).out for one in taking_part)

    # The command waits in another process, because the move may be over as soon as the throttle is raised.
    waiting = [sys.executable, "-m", "moldau", "topics", "moves", "--wait"]
    process = subprocess.Popen(waiting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "1 moves in progress\n"
        throttle(10_000_000)
        assert process.communicate(timeout=LIMIT_S)[1] == "all moves are done\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert {len(one) for one in replicas_of(at, "steady")} == {3}
    assert "throttled" not in at("configs", "describe", "topic", "steady").out
    assert not any("throttled" in at("configs", "describe", "broker", str(one)).out for one in taking_part)


@pytest.mark.real_time
def test_leaders_are_elected(at: Any, cluster: moldau.testing.Cluster) -> None:
    def leader() -> int:
        (row,) = json.loads(at("topics", "describe", "led", "--json").out)[0]["partitions"]
        return int(row["leader"])

    at("topics", "create", "led", "-r", "2")
    preferred, other = replicas_of(at, "led")[0]
    assert at("topics", "elect", "led").out == "0 leaders elected\n"
    cluster.kill(preferred)
    while leader() != other:
        pass
    failed = at("topics", "elect", "led")
    assert failed.code == 1
    assert "1 elections failed; led-0: PREFERRED_LEADER_NOT_AVAILABLE" in failed.err
    cluster.restart(preferred)
    rows = [{"error": "the preferred replica is not in sync yet"}]
    while rows[0]["error"] is not None:
        rows = json.loads(at("topics", "elect", "led", "--json").out)
    assert [(row["topic"], row["partition"]) for row in rows] == [("led", 0)]
    while leader() != preferred:
        pass
    # A partition with a leader needs no unclean election.
    assert at("topics", "elect", "led", "--unclean", "--yes").out == "0 leaders elected\n"
    assert at("topics", "elect", "absent").code == 1


def test_impossible_moves_are_reported(at: Any) -> None:
    at("topics", "create", "small", "-r", "1")
    for arguments, reason in (
        (("-r", "5"), "5 replicas need 5 brokers, and there are 4"),
        (("--brokers", "1,9"), "broker 9 is not registered"),
        (("--brokers", "1,x"), "'1,x' is not a list of ids"),
        (("-r", "2", "--throttle", "1", "--no-wait"), "--throttle needs the command to wait"),
    ):
        ran = at("topics", "reassign", "small", *arguments)
        assert ran.code != 0
        assert reason in ran.err


def test_log_directories_are_shown_and_wrong_moves_between_them_refused(
    at: Any, cluster: moldau.testing.Cluster
) -> None:
    at("topics", "create", "placed", "-r", "1")
    (placed,) = json.loads(at("topics", "describe", "placed", "--json").out)[0]["partitions"]
    shown = json.loads(at("brokers", "log-dirs", "--json").out)
    assert [(row["broker"], row["path"], row["online"]) for row in shown] == [
        (each, cluster.log_dirs(each)[0], True) for each in cluster.brokers
    ]
    names = [f"{one['topic']}-{one['partition']}" for one in shown[placed["leader"] - 1]["replicas"]]
    assert "placed-0" in names
    broker, path = str(placed["leader"]), cluster.log_dirs(placed["leader"])[0]
    table = at("brokers", "log-dirs", broker, "--replicas").out
    assert "online" in table
    assert "placed" in table
    for arguments, reason in (
        (("--to", "/nowhere"), f"/nowhere is not a log directory of the broker; it has {path}"),
        (("--to", path, "--from", "/nowhere"), "/nowhere is not a log directory of the broker"),
        (("--to", path, "placed-1"), "the broker has no replica of placed-1"),
    ):
        ran = at("brokers", "move-replicas", broker, *arguments)
        assert (ran.code, reason in ran.err) == (1, True)
    assert at("brokers", "move-replicas", broker, "placed", "--to", path).out == "nothing to move\n"
