"""``moldau diskless`` and ``topics list --diskless`` against a node with two coordinators."""

import json
import time

import pytest

import moldau.testing

PROPERTIES = {
    "diskless.system.enable": "true",
    "log.diskless.enable": "true",
    "diskless.metadata.topic.num.partitions": "2",
    "diskless.storage.url": "memory://",
    # All records of one ``produce`` command are in one object, even if they arrive slowly.
    "diskless.append.early.close.puts.per.second": "0",
    "diskless.append.commit.interval.ms": "500",
}


@pytest.fixture(scope="module")
def node():
    with moldau.testing.Node(properties=PROPERTIES) as running:
        yield running


@pytest.fixture
def orders(run):
    """A diskless topic of three partitions and thirty records."""
    assert run("topics", "create", "orders", "--partitions", "3", "--if-not-exists").code == 0
    if not json.loads(run("diskless", "topics", "orders", "--json").out)[0]["size_bytes"]:
        lines = b"".join(b"%d:order %d\n" % (number % 7, number) for number in range(30))
        assert run("produce", "orders", "--key-separator", ":", stdin=lines).code == 0
    return "orders"


def parsed(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def until(ask, holds):
    """Repeat a request until its response meets the condition. Return this response."""
    deadline = time.monotonic() + 60
    while not holds(found := ask()):
        assert time.monotonic() < deadline, found
    return found


def test_topics_are_listed_with_offsets_and_their_size_in_the_store(run, orders):
    (topic,) = parsed(run("diskless", "topics", "--json"))
    assert topic["name"] == orders
    partitions = topic["partitions"]
    assert [row["partition"] for row in partitions] == [0, 1, 2]
    assert {row["coordinator"] for row in partitions} == {0, 1}
    assert sum(row["next"] for row in partitions) == 30
    assert all(row["log_start"] == row["wal_start"] == 0 for row in partitions)
    assert topic["size_bytes"] == sum(row["size_bytes"] for row in partitions) > 0
    # Both coordinators have batches in the same objects. These objects, and their unused bytes, are counted
    # once.
    files = parsed(run("diskless", "files", "--json"))
    assert any(len(file["coordinators"]) == 2 for file in files)
    assert topic["objects"] == len(files)
    assert topic["objects_bytes"] == sum(file["size_bytes"] for file in files) > topic["size_bytes"]
    assert topic["unused_bytes"] == topic["objects_bytes"] - topic["size_bytes"]


def test_diskless_topics_are_printed_as_tables(run, orders):
    code, out, err = run("diskless", "topics", orders)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][:3] == ["TOPIC", "PARTITION", "COORDINATOR"]
    assert [line[:2] for line in lines[1:4]] == [[orders, "0"], [orders, "1"], [orders, "2"]]
    assert lines[5][:2] == ["TOPIC", "BYTES"]


def test_files_have_an_owner_and_a_state(run, orders):
    files = parsed(run("diskless", "files", "--json"))
    assert files
    for file in files:
        assert file["state"] == "live"
        assert file["owner"] in file["coordinators"]
        assert 0 < file["used_bytes"] < file["size_bytes"]
    used = sum(file["used_bytes"] for file in files)
    assert used == parsed(run("diskless", "topics", "--json"))[0]["size_bytes"]
    _, out, _ = run("diskless", "files")
    assert files[0]["object_key"] in out


def test_a_file_without_live_batches_is_free_or_handed_over(cli, monkeypatch):
    with moldau.testing.Node(properties=PROPERTIES) as alone:
        monkeypatch.setenv("MOLDAU_BOOTSTRAP", alone.bootstrap_servers)
        assert cli("produce", "gone", stdin=b"record\n").code == 0
        assert [file["state"] for file in parsed(cli("diskless", "files", "--json"))] == ["live"]
        assert cli("topics", "delete", "gone", "--yes").code == 0
        (file,) = until(
            lambda: parsed(cli("diskless", "files", "--json")), lambda files: files[0]["state"] != "live"
        )
        assert (file["state"], file["used_bytes"], file["live_batches"]) == ("free", 0, 0)
        assert parsed(cli("diskless", "topics", "--json")) == []


def test_coordinators_report_their_applied_and_end_offsets(run, orders):
    rows = until(
        lambda: parsed(run("diskless", "coordinators", "--json")),
        lambda rows: all(row["applied_offset"] == row["log_end"] for row in rows),
    )
    assert [row["id"] for row in rows] == [0, 1]
    assert {row["leader"] for row in rows} == {1}
    assert sum(row["partitions"] for row in rows) >= 3
    assert all(row["log_end"] > 0 for row in rows)
    assert all(row["snapshot_offset"] is None and row["problem"] is None for row in rows)
    _, out, _ = run("diskless", "coordinators")
    assert len(out.splitlines()) == 3


def test_only_diskless_topics_are_listed(run, orders):
    run("topics", "create", "local", "--config", "diskless.enable=false")
    names = [row["name"] for row in parsed(run("topics", "list", "--json"))]
    assert {"local", orders} <= set(names)
    names = [row["name"] for row in parsed(run("topics", "list", "--diskless", "--json"))]
    assert orders in names
    assert "local" not in names


def test_an_unknown_topic_is_named(run, orders):
    code, _, err = run("diskless", "topics", "absent")
    assert code == 1
    assert "no diskless topic is called absent" in err


def test_a_cluster_without_diskless_topics_is_reported(cli):
    with moldau.testing.Node() as classic:
        for command in ("topics", "files", "coordinators"):
            code, _, err = cli("diskless", command, "--bootstrap", classic.bootstrap_servers)
            assert code == 1
            assert "no diskless topics (diskless.system.enable)" in err
