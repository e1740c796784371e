"""Two drivers work on one Iceberg table. No record is written twice, in any order of their steps."""

import functools
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from exporting import create_topic, produce_values, read_table, run_here

import moldau.testing
from moldau.client.errors import ToolError
from moldau.pipeline.export.catalogs import open_catalog
from moldau.pipeline.export.iceberg import export_iceberg
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.export.progress import StartAt, find_starts
from moldau.pipeline.export.rounds import ExportRequest
from moldau.pipeline.reading.fetching import find_bounds
from moldau.pipeline.reading.topic_source import Bounds, TopicSource
from moldau.pipeline.values.formats import json_format

VALUES = [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def job(node: moldau.testing.Node, request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> ExportJob:
    topic = create_topic(node, f"t{abs(hash(request.node.name))}")
    return ExportJob(node.bootstrap_servers, topic, str(tmp_path), "iceberg", values=json_format(None))


def export_slowly(job: ExportJob, meanwhile: Callable[[], object]) -> None:
    """Export with a driver that reads the table and waits. The driver continues when ``meanwhile`` has
    returned."""
    look = functools.partial(find_bounds, job.bootstrap, job.topic, committed_only=True)

    def look_late() -> Bounds:
        meanwhile()
        return look()

    starts = None
    if job.start is not None:
        starts = functools.partial(find_starts, job.bootstrap, job.topic, job.start, timeout_s=60.0)
    source = TopicSource(job.bootstrap, job.topic, look().topic_id)
    export_iceberg(
        ExportRequest(source, look_late, run_here, 1000, job.values, starts), open_catalog(job.folder)
    )


def offsets(job: ExportJob) -> list[int]:
    return [row["offset"] for row in read_table(job)]


def test_another_driver_makes_the_table(node: moldau.testing.Node, job: ExportJob) -> None:
    produce_values(node, job.topic, VALUES)
    with pytest.raises(ToolError, match="another driver"):
        export_slowly(job, lambda: export_once(job, run_here))
    export_once(job, run_here)
    assert offsets(job) == [0, 1, 2]


def test_another_driver_commits_before_columns_are_added(node: moldau.testing.Node, job: ExportJob) -> None:
    produce_values(node, job.topic, VALUES)
    export_once(job, run_here)

    def meanwhile() -> None:
        produce_values(node, job.topic, VALUES)
        export_once(job, run_here)
        produce_values(node, job.topic, [b'{"b": 4}'])

    with pytest.raises(ToolError, match="another driver"):
        export_slowly(job, meanwhile)
    export_once(job, run_here)
    assert offsets(job) == list(range(7))


def test_another_driver_commits_before_the_start_is_written(
    node: moldau.testing.Node, job: ExportJob
) -> None:
    export_once(job, run_here)  # a table without records
    produce_values(node, job.topic, VALUES)
    with pytest.raises(ToolError, match="another driver"):
        export_slowly(replace(job, start=StartAt(latest=True)), lambda: export_once(job, run_here))
    export_once(replace(job, start=StartAt()), run_here)
    assert offsets(job) == [0, 1, 2]
