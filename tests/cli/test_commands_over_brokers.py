"""``moldau diskless`` and ``moldau tiered`` against three brokers. Each broker leads some partitions and some
coordinators, and a command shows all of them, through any broker."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import moldau.testing

PATIENCE_S = 120.0
PARTITIONS = "3"
PROPERTIES = {
    "diskless.metadata.topic.num.partitions": "3",
    "remote.log.manager.task.interval.ms": "50",
    "remote.log.metadata.topic.num.partitions": "3",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[moldau.testing.Cluster]:
    with moldau.testing.Cluster(brokers=3, properties=PROPERTIES) as running:
        yield running


@pytest.fixture
def at(cluster: moldau.testing.Cluster, cli: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command through a broker. The result is the parsed output."""

    def run(broker: int, *arguments: str, stdin: bytes = b"") -> Any:
        monkeypatch.setenv("MOLDAU_BOOTSTRAP", cluster.address(broker))
        ran = cli(*arguments, stdin=stdin)
        assert ran.code == 0, ran.err
        return json.loads(ran.out) if "--json" in arguments else ran.out

    return run


def until(ask: Callable[[], Any], is_wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not is_wanted(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_every_broker_shows_the_coordinators_topics_and_files_of_all_brokers(
    cluster: moldau.testing.Cluster, at: Callable[..., Any]
) -> None:
    at(1, "topics", "create", "orders", "-p", PARTITIONS, "-c", "diskless.enable=true")
    for partition in range(3):
        at(1, "produce", "orders", "-p", str(partition), stdin=b"one\ntwo\n")
    led = [(row["id"], row["leader"]) for row in at(1, "diskless", "coordinators", "--json")]
    assert [coordinator for coordinator, _ in led] == [0, 1, 2]
    assert {leader for _, leader in led} == set(cluster.brokers), "each broker leads a coordinator"
    shown = []
    for broker in cluster.brokers:
        (topic,) = at(broker, "diskless", "topics", "--json")
        assert [row["next"] for row in topic["partitions"]] == [2, 2, 2]
        files = at(broker, "diskless", "files", "--json")
        assert {owner for file in files for owner in file["coordinators"]} == {0, 1, 2}
        assert sum(file["used_bytes"] for file in files) == topic["size_bytes"]
        shown.append((topic, sorted(file["object_key"] for file in files)))
    assert shown[0] == shown[1] == shown[2]


def test_every_broker_shows_the_segments_that_all_leaders_have_copied(
    cluster: moldau.testing.Cluster, at: Callable[..., Any]
) -> None:
    configs = (
        "-c",
        "diskless.enable=false",
        "-c",
        "remote.storage.enable=true",
        "-c",
        "segment.bytes=1048576",
    )
    at(1, "topics", "create", "tiered", "-p", PARTITIONS, *configs)
    lines = b"".join(b"%0999d\n" % number for number in range(1500))
    for partition in range(3):
        at(1, "produce", "tiered", "-p", str(partition), stdin=lines)

    def segments(broker: int) -> list[tuple[int, int, str]]:
        rows = at(broker, "tiered", "segments", "tiered", "--json")
        return sorted((row["partition"], row["start_offset"], row["state"]) for row in rows)

    copied = until(
        lambda: segments(1),
        lambda rows: (
            {partition for partition, _, _ in rows} == {0, 1, 2}
            and all(state == "COPY_SEGMENT_FINISHED" for _, _, state in rows)
        ),
    )
    for broker in cluster.brokers:
        assert segments(broker) == copied
        (topic,) = at(broker, "tiered", "topics", "tiered", "--json")
        assert [(row["high_watermark"], row["problem"]) for row in topic["partitions"]] == [(1500, None)] * 3
        assert sum(row["segments"] for row in topic["partitions"]) == len(copied)
