"""A streaming query is refused. Spark shows the error of Moldau in one line, and no error of its own."""

import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from pyspark.sql.types import LongType, StructType

from moldau.client.errors import ToolError
from moldau.pipeline.data_source import MoldauDataSource

HIDES = "SPARK_HIDE_TRACEBACK"
OF_SPARKS_PROCESSES = (
    "SPARK_REUSE_WORKER",
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
)


@pytest.mark.parametrize(
    ("options", "column", "problem"),
    [({"endingOffsets": "latest"}, "offset", "no ending offsets"), ({}, "bogus", "no column 'bogus'")],
)
@pytest.mark.parametrize("variable", OF_SPARKS_PROCESSES)
def test_a_stream_is_refused_when_it_begins_in_one_line(
    options: dict[str, str], column: str, problem: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a", "startingOffsets": "latest"}
    source = MoldauDataSource(given | options)
    # ``streamReader`` must not raise the error, because Spark's process would then end with an error of its
    # own.
    reader: Any = source.streamReader(StructType().add(column, LongType()))
    for name in OF_SPARKS_PROCESSES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "x")
    starts: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.latestOffset,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
    ]
    for start in starts:
        monkeypatch.setenv(HIDES, "")
        with pytest.raises(ToolError, match=problem):
            start()
        assert os.environ[HIDES] == "1"
