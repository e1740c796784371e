"""Exports are exactly once. This is also true if they are killed at any step, are repeated, or have two
drivers at once. The tests do not need Spark."""

import dataclasses
import errno
import functools
import math
import os
import pathlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

import pyarrow.parquet as pq
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from exporting import FORMATS, Killed, dying_after, run_here

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export import units as export_units
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import OFFSETS_PROPERTY, export_iceberg, table_name
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.export.parquet import ParquetFolder, export_parquet
from moldau.pipeline.export.rounds import ExportRequest
from moldau.pipeline.export.targets import TableFolder
from moldau.pipeline.reading.fetching import find_bounds
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.unit_runs import Lag
from moldau.runtime.errors import KafkaError

RECORDS = 300


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def topic(node: moldau.testing.Node, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=2)])[name].result(60)
    return name


def produce(node: moldau.testing.Node, topic: str, count: int, start: int = 0, **config: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "compression.type": "zstd", **config})
    for number in range(start, start + count):
        producer.produce(topic, key=b"k%d" % number, value=b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0


def job_of(node: moldau.testing.Node, topic: str, folder: pathlib.Path, table_format: str) -> ExportJob:
    return ExportJob(node.bootstrap_servers, topic, str(folder), table_format, unit_records_max=40)


def values(job: ExportJob) -> list[int]:
    """The rows of the table, in order."""
    if job.table_format == "iceberg":
        table = open_catalog(job.folder).load_table(table_name(job.topic)).scan().to_arrow()
        return sorted(int(value) for value in table["value"].to_pylist())
    files = sorted(pathlib.Path(job.folder).glob("*.parquet"))
    return sorted(int(value) for file in files for value in pq.read_table(file)["value"].to_pylist())


@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_rounds_add_only_new_records(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path / "to", table_format)
    assert export_once(job, run_here).files == []
    produce(node, topic, RECORDS)
    assert export_once(job, run_here).records == RECORDS
    assert export_once(job, run_here).files == []
    produce(node, topic, 7, RECORDS)
    assert export_once(job, run_here).records == 7
    assert values(job) == list(range(RECORDS + 7))


@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_an_export_is_completed_if_its_driver_is_killed_after_any_unit(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, table_format: str
) -> None:
    job = job_of(node, topic, tmp_path / "to", table_format)
    produce(node, topic, RECORDS)
    for count in range(9):
        try:
            export_once(job, dying_after(count % 4))
        except Killed:
            # The topic grows, but the new records are not exported.
            produce(node, topic, 1, RECORDS + count)
    export_once(job, run_here)
    found = values(job)
    assert [value for value, times in Counter(found).items() if times > 1] == []
    assert found == list(range(len(found)))
    assert len(found) >= RECORDS


def test_a_plan_of_a_driver_that_died_before_its_first_unit_is_done_by_the_next(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "parquet")
    produce(node, topic, RECORDS)
    with pytest.raises(Killed):
        export_once(job, dying_after(0))
    plan = ParquetFolder(job.folder).last_plan()
    assert plan is not None
    names = {file.unit for file in export_once(job, run_here).files}
    assert names == set(plan.units)


def test_a_unit_that_is_written_twice_is_in_the_table_once(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    """A task may be repeated, or run twice at the same time."""
    job = job_of(node, topic, tmp_path, "parquet")
    produce(node, topic, RECORDS)

    def twice(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        assert run_here(function, units) == run_here(function, units)
        return run_here(function, units)

    export_once(job, twice)
    assert values(job) == list(range(RECORDS))


def test_two_drivers_at_once_make_one_folder_of_files(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    """The second driver starts after the first driver has planned. The second driver starts again at the end,
    when there are more records."""
    job = job_of(node, topic, tmp_path, "parquet")
    produce(node, topic, RECORDS)
    inner: list[Any] = []

    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        produce(node, topic, 10, RECORDS)
        inner.extend(export_once(job, run_here).files)
        return run_here(function, units)

    export_once(job, run)
    assert inner
    export_once(job, run_here)
    assert values(job) == list(range(RECORDS + 10))


def test_a_plan_number_is_given_once(node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path) -> None:
    """A driver wants to write a plan, but another driver has already used the number of this plan. The driver
    reads the plans again, and plans the remaining records."""
    produce(node, topic, RECORDS)
    job = job_of(node, topic, tmp_path, "parquet")
    source = TopicSource(
        job.bootstrap, topic, find_bounds(job.bootstrap, topic, committed_only=True).topic_id
    )
    look = functools.partial(find_bounds, job.bootstrap, topic, committed_only=True)
    others = iter([lambda: export_once(job, run_here)])

    def look_while_another_exports() -> object:
        bounds = look()
        next(others, lambda: None)()
        return bounds

    request = ExportRequest(source, look_while_another_exports, run_here, 1000)  # type: ignore[arg-type]
    assert export_parquet(request, ParquetFolder(job.folder)).written == []
    assert values(job) == list(range(RECORDS))


def test_only_one_of_two_concurrent_iceberg_exports_commits(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "iceberg")
    for start in (0, RECORDS):  # the first commit of a table, and a later commit
        produce(node, topic, RECORDS, start)

        def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
            export_once(job, run_here)
            return run_here(function, units)

        with pytest.raises(ToolError, match="another driver has committed"):
            export_once(job, run)
        assert values(job) == list(range(start + RECORDS))
        assert export_once(job, run_here).files == []


def test_progress_of_an_iceberg_table_outlives_its_snapshots(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    job = job_of(node, topic, tmp_path, "iceberg")
    for start in (0, RECORDS):
        produce(node, topic, RECORDS, start)
        export_once(job, run_here)
    table = open_catalog(job.folder).load_table(table_name(topic))
    current = table.current_snapshot()
    assert current is not None
    assert len(table.snapshots()) == 2
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    table.refresh()
    assert len(table.snapshots()) == 1
    assert table.properties[OFFSETS_PROPERTY] == f'{{"0": {RECORDS}, "1": {RECORDS}}}'
    assert export_once(job, run_here).files == []
    assert values(job) == list(range(2 * RECORDS))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_round_without_a_record_moves_on(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, kind: str
) -> None:
    """Records are deleted before or during the round. Their offsets are not counted as lag."""

    def delete(offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
        places = [TopicPartition(topic, partition, offset) for partition in range(2)]
        for done in admin.delete_records(places).values():
            done.result(60)

    def deleting(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        delete(15)
        return run_here(function, units)

    job = dataclasses.replace(job_of(node, topic, tmp_path, kind), may_lose=True)
    produce(node, topic, 10)
    assert export_once(job, run_here).lag_records == 0
    produce(node, topic, 10, 10)
    delete(10)
    assert export_once(job, run_here).lag_records == 0
    produce(node, topic, 10, 20)
    done = export_once(job, deleting)
    assert (done.records, done.lag_records) == (0, 0)
    # Losses are forbidden in this export. Losses that an earlier export accepted are not reported again.
    produce(node, topic, 10, 30)
    assert export_once(dataclasses.replace(job, may_lose=False), run_here).records == 10
    assert values(job) == [*range(10), *range(30, 40)]


def test_a_folder_belongs_to_one_topic(node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path) -> None:
    produce(node, topic, 4)
    export_once(job_of(node, topic, tmp_path, "parquet"), run_here)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.create_topics([NewTopic(f"{topic}-other", num_partitions=1)])[f"{topic}-other"].result(60)
    with pytest.raises(ToolError, match="holds an export of topic"):
        export_once(job_of(node, f"{topic}-other", tmp_path, "parquet"), run_here)


def test_a_topic_that_was_created_again_is_another_topic(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    jobs = [job_of(node, topic, tmp_path / kind, kind) for kind in ("parquet", "iceberg")]
    produce(node, topic, 4)
    for job in jobs:
        export_once(job, run_here)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(60)
    for job in jobs:
        with pytest.raises(ToolError, match="created again"):
            export_once(job, run_here)


def test_an_export_of_a_missing_topic_leaves_no_files(
    node: moldau.testing.Node, tmp_path: pathlib.Path
) -> None:
    for kind in ("parquet", "iceberg"):
        with pytest.raises(KafkaError, match="does not exist"):
            export_once(job_of(node, "absent", tmp_path / kind, kind), run_here)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_of_the_other_format_is_refused_by_name(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, kind: str
) -> None:
    """Without the refusal, an export of one format would treat the files of the other format as its own, or
    hide them from readers."""
    produce(node, topic, 4)
    job = job_of(node, topic, tmp_path, kind)
    export_once(job, run_here)
    (other,) = set(FORMATS) - {kind}
    holds = {
        "parquet": f"holds an export of topic {topic} as plain Parquet",
        "iceberg": "holds Iceberg tables",
    }
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ToolError, match=rf"^{tmp_path} {holds[kind]}: --format {kind}, or another folder$"):
        export_once(dataclasses.replace(job, table_format=other), run_here)
    assert sorted(tmp_path.rglob("*")) == before
    assert values(job) == list(range(4))


def test_plain_files_do_not_go_into_the_folder_of_an_iceberg_table(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    produce(node, topic, 4)
    export_once(job_of(node, topic, tmp_path, "iceberg"), run_here)
    with pytest.raises(ToolError, match="holds Iceberg tables"):
        export_once(job_of(node, topic, tmp_path / "moldau" / topic, "parquet"), run_here)


FOREIGN = {
    "_delta_log/00000000000000000000.json": "a Delta table",
    ".hoodie/hoodie.properties": "a Hudi table",
    "part-00000.snappy.parquet": "Parquet files that no export has written",
    "day=2031-05-17/part-00000.snappy.parquet": "Parquet files that no export has written",
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_another_program_is_not_mixed_with_an_export(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, kind: str
) -> None:
    for number, (name, problem) in enumerate(FOREIGN.items()):
        folder = tmp_path / str(number)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"other")
        before = sorted(folder.rglob("*"))
        with pytest.raises(ToolError, match=f"^{folder} holds {problem}.*: take another folder$"):
            export_once(job_of(node, topic, folder, kind), run_here)
        assert sorted(folder.rglob("*")) == before


def test_an_export_without_its_plans_is_not_begun_again(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    """Without its plans, an export would write the same records again, to files with other offset ranges. The
    records would then be in the table twice."""
    job = job_of(node, topic, tmp_path, "parquet")
    for _ in range(2):
        produce(node, topic, 4)
        export_once(job, run_here)
    shutil.rmtree(tmp_path / "_moldau")
    with pytest.raises(ToolError, match="whose folder _moldau is gone: take another folder"):
        export_once(job, run_here)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_one_line_with_the_folder(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, kind: str
) -> None:
    def full(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    produce(node, topic, 4)
    with pytest.raises(ToolError, match=f"^{tmp_path} cannot be written: No space left on device$"):
        export_once(job_of(node, topic, tmp_path, kind), full)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_of_a_task_is_one_line_with_the_folder(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark forwards only the text of an error, so the task's error text has to name the folder."""

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28]")

    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        with pytest.raises(ToolError, match=f"{tmp_path}.* cannot be written: No space left on device$"):
            run_here(function, units)
        raise Killed

    produce(node, topic, 4)
    monkeypatch.setattr(export_units, "create_file", full)
    monkeypatch.setattr(TableFolder, "create", full)
    with pytest.raises(Killed):
        export_once(job_of(node, topic, tmp_path, kind), run)


def test_a_catalog_that_does_not_work_is_one_line(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database" * 1000)
    with pytest.raises(ToolError, match=r"^the catalog of .* does not work: file is not a database$"):
        export_once(job_of(node, topic, tmp_path, "iceberg"), run_here)


def test_the_lag_is_known_from_the_begin_of_a_round(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    lag = Lag()
    told = []

    def run(function: Callable[[Any], Any], units: Sequence[Any]) -> list[Any]:
        told.append(lag.records)
        return run_here(function, units)

    produce(node, topic, RECORDS)
    job = job_of(node, topic, tmp_path, "parquet")
    export_once(job, run, lag)
    assert (told, lag.records) == ([RECORDS], 0)
    with pytest.raises(KafkaError):
        export_once(dataclasses.replace(job, topic="absent"), run_here, lag)
    assert math.isnan(lag.records)


def test_iceberg_export_needs_its_own_table(
    node: moldau.testing.Node, topic: str, tmp_path: pathlib.Path
) -> None:
    produce(node, topic, 4)
    job = job_of(node, topic, tmp_path, "iceberg")
    export_once(job, run_here)
    catalog = open_catalog(job.folder)
    with catalog.load_table(table_name(topic)).transaction() as change:
        change.remove_properties("commit.retry.num-retries")
    source = TopicSource(job.bootstrap, topic, "")
    with pytest.raises(ToolError, match=r"set commit.retry.num-retries to 0"):
        export_iceberg(ExportRequest(source, lambda: pytest.fail("not asked"), run_here, 10), catalog)
