"""The notebook of the documentation runs and has the documented results."""

import pathlib
from typing import Any

import pytest
from spark_support import missing_spark

if reason := missing_spark():
    pytest.skip(reason, allow_module_level=True)

from pyspark.sql import SparkSession

import moldau.testing

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "pipeline-notebook.md"

pytestmark = [pytest.mark.timeout(1500), pytest.mark.filterwarnings("ignore")]


def test_the_notebook_runs(
    spark: SparkSession,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    assert len(cells) == 6
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with moldau.testing.Node(diskless=True) as node:
        for cell in cells:
            # Spark's workers run in another folder, so the notebook needs absolute paths.
            there = cell.replace("127.0.0.1:9092", node.bootstrap_servers).replace(
                "lake/", f"{tmp_path}/lake/"
            )
            exec(compile(there, PAGE.name, "exec"), names)
    told = capsys.readouterr().out
    assert "997 records, 3 dead letters, lag 0" in told
    assert "100 records more, 100 with a coupon, 1097 in all" in told
    assert "1100 records in the topic, 3 by phone" in told
    assert "order 403, by phone" in told
    best = names["best"].collect()
    assert sum(row.orders for row in best) == 997
    assert [row.amount for row in best] == sorted((row.amount for row in best), reverse=True)
