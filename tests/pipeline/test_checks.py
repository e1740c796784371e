"""The verification job finds damage that the test has made. The orphan job removes orphans and no other
objects."""

import asyncio
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from exporting import run_here
from hypothesis import given
from hypothesis import strategies as st

import moldau.testing
from moldau.cli.main import main
from moldau.cli.pipeline import checks as pipeline_checks
from moldau.client.diskless import DisklessCoordinators
from moldau.client.errors import ToolError
from moldau.coordinators.diskless.calls import BatchCoordinate
from moldau.pipeline.checks import verify as verifying
from moldau.pipeline.checks.damage import compare_batch, find_gaps, uncovered
from moldau.pipeline.checks.orphans import FixedClock, OrphansJob, reconcile_deletions
from moldau.pipeline.checks.verify import VerifyJob, verify_once
from moldau.pipeline.consolidation.job import ConsolidateJob, consolidate_once
from moldau.pipeline.reading.tier_segments import SegmentObject, list_segments
from moldau.records.builder import build_batch
from moldau.records.record import Record
from moldau.runtime.clock import SystemClock

DAY_MS = 86_400_000
RECORDS = 60


def coordinate(first: int, last: int, size_bytes: int = 100) -> BatchCoordinate:
    return BatchCoordinate(UUID(int=1), 0, first, last, "key", 0, size_bytes, 0, 0, 0)


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_gaps_are_exactly_the_offsets_without_a_batch(there: list[bool], start: int, width: int) -> None:
    batches = [
        coordinate(start + index * (width + 1), start + index * (width + 1) + width)
        for index, is_there in enumerate(there)
        if is_there
    ]
    end = start + len(there) * (width + 1)
    missing = [offset for first, last in find_gaps(batches, start, end) for offset in range(first, last + 1)]
    held = {offset for one in batches for offset in range(one.base_offset, one.last_offset + 1)}
    assert missing == [offset for offset in range(start, end) if offset not in held]


def test_the_first_batch_may_begin_before_and_others_may_not() -> None:
    assert find_gaps([coordinate(0, 9), coordinate(10, 19)], 5, 20) == []
    assert find_gaps([coordinate(5, 9), coordinate(8, 19)], 5, 20) == [(8, 9)]


def test_a_batch_is_compared_with_the_coordinates_of_its_coordinator() -> None:
    data = build_batch([Record(offset, 1, None, b"value") for offset in range(3)], base_offset=0)
    assert compare_batch(data, coordinate(7, 9, len(data))) is None
    assert "3 offsets, the coordinator has 4" in str(compare_batch(data, coordinate(7, 10, len(data))))
    assert "CRC" in str(compare_batch(data[:-1] + b"!", coordinate(7, 9, len(data))))
    assert compare_batch(data[:-1], coordinate(7, 9, len(data))) is not None
    assert compare_batch(b"", coordinate(7, 9, len(data))) is not None


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[moldau.testing.Node]:
    properties = {
        "diskless.metadata.topic.num.partitions": "3",
        "diskless.append.commit.interval.ms": "5",
        "remote.log.metadata.topic.num.partitions": "2",
        "diskless.consolidation.enable": "false",
        "diskless.consolidation.segment.bytes": "5000",
        "diskless.consolidation.max.age.ms": "0",
    }
    with moldau.testing.Node(data=str(tmp_path), properties=properties, diskless=True) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        for name in ("orders", "other"):
            admin.create_topics([NewTopic(name, num_partitions=3)])[name].result(60)
        for _ in range(3):
            produce(running)
        yield running


def produce(node: moldau.testing.Node) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 0})
    for number in range(RECORDS // 3):
        for topic in ("orders", "other"):
            producer.produce(topic, value=b"%d" % number * 20, partition=number % 3)
    assert producer.flush(60) == 0


def objects(node: moldau.testing.Node) -> list[pathlib.Path]:
    """WAL objects from the oldest to the newest."""
    found = [path for path in pathlib.Path(node.data).rglob("wal/*/*/*") if path.is_file()]
    return sorted(found, key=lambda path: path.name)


def verify(node: moldau.testing.Node, **more: Any) -> dict[str, Any]:
    return verify_once(VerifyJob(node.bootstrap_servers, unit_records_max=13, **more), run_here)


def test_damage_is_found(node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = verify(node)
    assert (whole["topics"], whole["partitions"], whole["damages"]) == (2, 6, 0)
    assert whole["records"] == 2 * RECORDS
    assert verify(node, topics=["orders"])["records"] == RECORDS
    with pytest.raises(ToolError, match="no diskless topic is called absent"):
        verify(node, topics=["absent"])

    flipped, cut, removed = objects(node)[:3]
    data = bytearray(flipped.read_bytes())
    data[90] ^= 1
    flipped.write_bytes(data)
    os.truncate(cut, 70)
    removed.unlink()
    found = verify(node)
    by_object: dict[str, set[str]] = {}
    for one in found["examples"]:
        by_object.setdefault(pathlib.Path(one["object_key"]).name, set()).add(one["kind"])
    assert by_object == {flipped.name: {"corrupt"}, cut.name: {"corrupt"}, removed.name: {"missing"}}
    lost = sum(one["last_offset"] - one["first_offset"] + 1 for one in found["examples"])
    assert found["damages"] == len(found["examples"])
    assert found["records"] + lost == whole["records"]

    monkeypatch.setattr(pipeline_checks, "check_spark", lambda: None)
    monkeypatch.setattr(pipeline_checks, "run_job_once", lambda name, work, master: work(run_here))
    assert main(["pipeline", "verify", "--bootstrap", node.bootstrap_servers]) == 1
    assert main(["pipeline", "verify", "--bootstrap", node.bootstrap_servers, "--json"]) == 1


def test_offsets_that_no_batch_has_are_found(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test cannot remove a batch from a coordinator's state, so some batches are removed from the
    coordinator's responses.

    Each flush ends a batch, and has seven records for the first partition.
    """
    find = DisklessCoordinators.find
    hidden: set[tuple[str, int, int]] = set()

    async def find_less(self: DisklessCoordinators, *asked: Any) -> Any:
        rows, thinned = await find(self, *asked), []
        for row in rows:
            kept = [one for one in row.batches if one.base_offset != 7]
            for one in row.batches:
                if one.base_offset == 7:
                    hidden.add((str(asked[1]), row.partition_index, one.last_offset))
            thinned.append(row._replace(batches=kept))
        return thinned

    monkeypatch.setattr(DisklessCoordinators, "find", find_less)
    found = verify_once(VerifyJob(node.bootstrap_servers), run_here)
    gaps = [(one["partition"], one["first_offset"], one["last_offset"]) for one in found["examples"]]
    assert {one["kind"] for one in found["examples"]} == {"gap"}
    assert sorted(gaps) == sorted((partition, 7, last) for _, partition, last in hidden)
    assert gaps


def test_damage_in_the_tier_is_found(node: moldau.testing.Node) -> None:
    done = consolidate_once(ConsolidateJob(node.bootstrap_servers, timeout_s=60.0), run_here)
    assert done["segments"] >= 6
    produce(node)
    whole = verify(node)
    assert (whole["damages"], whole["records"]) == (0, 2 * (RECORDS + RECORDS // 3))
    logs = sorted(pathlib.Path(node.data).rglob("*.log"), key=lambda path: path.stat().st_size)
    flipped, cut, removed = [path for path in logs if re.fullmatch(r"\d{20}-.+", path.name)][:3]
    data = bytearray(flipped.read_bytes())
    data[90] ^= 1
    flipped.write_bytes(data)
    os.truncate(cut, cut.stat().st_size - 3)
    removed.unlink()
    found = verify(node)
    by_object = {pathlib.Path(one["object_key"]).name: one["kind"] for one in found["examples"]}
    assert by_object == {flipped.name: "corrupt", cut.name: "corrupt", removed.name: "missing"}


def test_offsets_that_no_segment_has_are_found(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are missing in the metadata: in one partition a segment in the middle, and in the other
    partitions the last segment before the WAL."""
    assert consolidate_once(ConsolidateJob(node.bootstrap_servers, timeout_s=60.0), run_here)["segments"] >= 6
    produce(node)
    whole = verify(node)
    forgotten: list[tuple[int, int, int]] = []

    async def list_less(client: Any, topic: Any, partition: int, tier: Any) -> list[SegmentObject]:
        found = await list_segments(client, topic, partition, tier)
        if topic.name == "other":
            return found
        # The range is divided into three segments, so that the test can omit the segment in the middle.
        first = found[0]
        third = (found[-1].end_offset + 1) // 3
        hidden = (third, 2 * third - 1) if partition == 0 else (third, found[-1].end_offset)
        forgotten.append((partition, *hidden))
        kept = [first._replace(end_offset=hidden[0] - 1)]
        if hidden[1] < found[-1].end_offset:
            kept.append(first._replace(start_offset=hidden[1] + 1, end_offset=found[-1].end_offset))
        return kept

    monkeypatch.setattr(verifying, "list_segments", list_less)
    plan = asyncio.run(verifying._plan(VerifyJob(node.bootstrap_servers)))
    gaps = [(one.partition, one.first_offset, one.last_offset) for one in plan.gaps]
    assert {one.kind for one in plan.gaps} == {"gap"}
    assert sorted(gaps) == sorted(forgotten)
    assert len(gaps) == 3
    assert verify_once(VerifyJob(node.bootstrap_servers), run_here)["damages"] > whole["damages"] == 0


def test_segments_of_another_storage_manager_are_read_through_their_leaders(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert consolidate_once(ConsolidateJob(node.bootstrap_servers, timeout_s=60.0), run_here)["segments"] >= 6
    produce(node)
    by_objects = verify(node)

    async def unknown(*_: Any) -> None:
        return None

    monkeypatch.setattr(verifying, "find_tier", unknown)
    by_leaders = verify(node)
    assert (by_leaders["damages"], by_leaders["records"]) == (0, by_objects["records"])


def test_overlapping_segments_cover_their_ranges_together() -> None:
    assert uncovered([(0, 9), (5, 14), (15, 20)], 3, 18) == []
    assert uncovered([(5, 9), (12, 14)], 3, 18) == [(3, 4), (10, 11), (15, 17)]
    assert uncovered([], 3, 3) == []


def test_a_job_fails_on_damage(node: moldau.testing.Node, tmp_path: pathlib.Path) -> None:
    from moldau.pipeline.jobs import parse_jobs

    jobs = parse_jobs(
        "jobs.toml", {"job": [{"kind": "verify"}, {"kind": "orphans"}]}, node.bootstrap_servers
    ).jobs
    assert jobs[0].run(run_here)["damages"] == 0
    assert jobs[1].run(run_here)["orphans"] == 0
    objects(node)[0].unlink()
    with pytest.raises(ToolError, match=r"damages?; the first: missing, o\w+-\d, offsets \d+ to \d+"):
        jobs[0].run(run_here)


def test_orphans_are_found_and_only_they_are_removed(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = SystemClock().now_ms()
    one = objects(node)[0]
    key = f"{now_ms - 30 * DAY_MS:012x}-0-{'5' * 20}"
    orphan, foreign = one.with_name(key), one.with_name("notes.txt")
    for path in (orphan, foreign):
        path.write_bytes(b"left behind")
    known = set(objects(node)) - {orphan, foreign}
    job = OrphansJob(node.bootstrap_servers, delete=True)

    young = reconcile_deletions(job, run_here)
    assert (young["orphans"], young["deleted"], young["old"]) == (0, 0, 0)
    later = FixedClock(now_ms + DAY_MS)
    dry = reconcile_deletions(OrphansJob(node.bootstrap_servers), run_here, later)
    assert (dry["orphans"], dry["deleted"], dry["foreign"]) == (1, 0, 1)
    assert dry["examples"] == [str(orphan.relative_to(orphan.parents[3]))]
    assert dry["known"] == len(known)
    assert orphan.exists()

    gone = reconcile_deletions(job, run_here, later)
    assert (gone["orphans"], gone["deleted"], gone["orphan_bytes"]) == (1, 1, 11)
    assert set(objects(node)) == known | {foreign}
    assert verify(node)["damages"] == 0


def test_parts_of_killed_tasks_are_orphans_after_a_day(node: moldau.testing.Node) -> None:
    store = pathlib.Path(node.data, "objects")
    part, intent = store / "sink/q/parts/a-b", store / f"sink/q/{1:020d}.intent"
    for path in (part, intent):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")
    job = OrphansJob(node.bootstrap_servers, delete=True)
    now_ms = SystemClock().now_ms()
    assert reconcile_deletions(job, run_here, FixedClock(now_ms + DAY_MS - 60_000))["deleted"] == 0
    later = FixedClock(now_ms + DAY_MS + 60_000)
    dry = reconcile_deletions(OrphansJob(node.bootstrap_servers), run_here, later)
    assert (dry["orphans"], dry["orphan_bytes"], dry["deleted"]) == (1, 11, 0)
    assert dry["examples"] == ["sink/q/parts/a-b"]
    assert part.exists()
    assert reconcile_deletions(job, run_here, later)["deleted"] == 1
    assert (part.exists(), intent.exists()) == (False, True)
    part.write_bytes(b"left behind")
    told = OrphansJob(node.bootstrap_servers, delete=True, older_than_ms=1000)
    assert reconcile_deletions(told, run_here, FixedClock(now_ms + DAY_MS // 2))["deleted"] == 1


def test_objects_of_unpublished_attempts_are_orphans_in_the_tier(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each task runs twice. The results of the first runs are lost, so the objects of these runs are never
    published. One additional object belongs to an unknown segment."""

    def twice(function: Any, units: Any) -> list[Any]:
        late = run_here(function, units)
        assert all(one.failure is None for one in late)
        return run_here(function, units)

    job = ConsolidateJob(node.bootstrap_servers, ("orders",), timeout_s=60.0)
    segments = consolidate_once(job, twice)["segments"]
    store = pathlib.Path(node.data) / "objects"
    one = next(store.glob("tiered/orders-*/*/*.log"))
    stray = one.with_name(f"{0:020d}-{UUID(int=5)}.log")
    stray.write_bytes(b"left behind")
    one.with_name("notes.txt").write_bytes(b"somebody's")

    young = reconcile_deletions(OrphansJob(node.bootstrap_servers), run_here)
    assert (young["tier_objects"], young["tier_old"], young["tier_orphans"]) == (4 * segments + 2, 0, 0)
    later = FixedClock(SystemClock().now_ms() + DAY_MS)
    found = reconcile_deletions(OrphansJob(node.bootstrap_servers, delete=True), run_here, later)
    assert (found["orphans"], found["tier_orphans"]) == (0, 2 * segments + 1)
    orphans = {store / key for key in found["tier_examples"]}
    assert stray in orphans
    assert found["tier_orphan_bytes"] == sum(path.stat().st_size for path in orphans)  # no object is removed
    for path in orphans:
        path.unlink()
    assert verify(node)["damages"] == 0
    assert reconcile_deletions(OrphansJob(node.bootstrap_servers), run_here, later)["tier_orphans"] == 0

    monkeypatch.setattr(pipeline_checks, "check_spark", lambda: None)
    monkeypatch.setattr(pipeline_checks, "run_job_once", lambda name, work, master: work(run_here))
    assert main(["pipeline", "orphans", "--bootstrap", node.bootstrap_servers]) == 0
    assert f"{2 * segments + 1} objects in the tier, 0 old enough: 0 orphans" in capsys.readouterr().out


def test_no_object_is_deleted_if_a_coordinator_refuses_the_request(
    node: moldau.testing.Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from moldau.runtime.errors import ErrorCode, KafkaError

    one = objects(node)[0]
    one.with_name(f"{0:012x}-0-{'5' * 20}").write_bytes(b"left behind")

    async def refuse(*_: Any) -> Any:
        raise KafkaError(ErrorCode.cluster_authorization_failed, "this needs CLUSTER_ACTION")

    monkeypatch.setattr(DisklessCoordinators, "describe_files", refuse)
    later = FixedClock(SystemClock().now_ms() + DAY_MS)
    found = reconcile_deletions(OrphansJob(node.bootstrap_servers, delete=True), run_here, later)
    assert (found["orphans"], found["deleted"]) == (0, 0)
    assert found["unanswered"] == len(objects(node))
    assert len(json.dumps(found)) > 0


def test_no_orphans_are_sought_where_another_cluster_stores_its_records(
    node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    later = FixedClock(SystemClock().now_ms() + DAY_MS)
    job = OrphansJob(node.bootstrap_servers, delete=True)
    stray = objects(node)[0].with_name(f"{0:012x}-0-{'5' * 20}")
    stray.write_bytes(b"perhaps the other's")
    claim = pathlib.Path(node.data, "objects/.moldau/clusters/the-other")
    claim.write_bytes(b"the-other")
    for refused in (job, OrphansJob(node.bootstrap_servers)):
        with pytest.raises(ToolError, match="belongs to cluster the-other, and this is cluster"):
            reconcile_deletions(refused, run_here, later)
    claim.unlink()

    elsewhere = tmp_path / "elsewhere"
    others = elsewhere / stray.relative_to(node.data + "/objects")
    others.parent.mkdir(parents=True)
    others.write_bytes(b"nobody asked about it")
    wrong = OrphansJob(
        node.bootstrap_servers, delete=True, storage={"diskless.storage.url": elsewhere.as_uri()}
    )
    with pytest.raises(ToolError, match=r"is not where cluster .* stores its objects"):
        reconcile_deletions(wrong, run_here, later)
    assert (stray.exists(), others.exists()) == (True, True)
    assert reconcile_deletions(job, run_here, later)["deleted"] == 1


def test_orphans_need_diskless_topics() -> None:
    with moldau.testing.Node() as classic, pytest.raises(ToolError, match="no diskless topics"):
        reconcile_deletions(OrphansJob(classic.bootstrap_servers), run_here)
