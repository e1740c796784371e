"""The commands of the pipeline: refusals, output and exit codes. Units run in this process."""

import io
import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")
pytest.importorskip("pyspark", reason="needs PySpark: pip install 'moldau[spark]'")

from exporting import create_topic, produce_values, run_here

import moldau.testing
from moldau.cli.main import main
from moldau.cli.pipeline import export as pipeline_export
from moldau.cli.pipeline import jobs as pipeline_jobs
from moldau.cli.pipeline.progress_display import BarDisplay, LineDisplay, display
from moldau.pipeline import session


class PoolHere:
    """A replacement for the Spark pool. It runs units in this process. In the third round it sends SIGTERM to
    this process."""

    def __init__(self, *given: Any, **settings: str) -> None:
        self.rounds = 0

    def session(self) -> None:
        pass

    def units(self, job: str) -> Any:
        self.rounds += 1
        if self.rounds == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return run_here

    def cancel(self) -> None:
        pass

    def __enter__(self) -> "PoolHere":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SparkPool", PoolHere)
    for module in (pipeline_export, pipeline_jobs):
        monkeypatch.setattr(module, "check_spark", lambda: None)


@pytest.fixture(scope="module")
def node() -> Iterator[moldau.testing.Node]:
    with moldau.testing.Node() as running:
        create_topic(running, "orders", partitions=1)
        produce_values(running, "orders", [b'{"total": 1}', b"oops"])
        yield running


def export(node: moldau.testing.Node, to: pathlib.Path, *more: str) -> int:
    command = ["pipeline", "export", "--bootstrap", node.bootstrap_servers, "--topic", "orders"]
    return main([*command, "--to", str(to), *more])


def test_a_path_of_log_settings_may_have_spaces() -> None:
    assert session.java_options("/opt/my venv/log4j2.properties").split() == [
        "-Dlog4j2.configurationFile=file:///opt/my%20venv/log4j2.properties",
        "-XX:+UseSerialGC",
    ]


def test_a_line_for_people_and_json_for_scripts(
    node: moldau.testing.Node, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(node, tmp_path, "--value", "json", "--schema", "total INT") == 0
    dead = tmp_path / "_dead_letters"
    assert (
        capsys.readouterr().out
        == f"orders: 1 records in 1 new files in {tmp_path}, 1 dead letters in {dead}, lag 0\n"
    )
    assert export(node, tmp_path, "--value", "json", "--schema", "total INT", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["lag_records"], found["files"]) == (0, 0, [])
    replay = ["pipeline", "replay", "--bootstrap", node.bootstrap_servers, "--topic", "orders"]
    assert main([*replay, "--to", str(tmp_path), "--schema", "total INT"]) == 0
    assert (
        capsys.readouterr().out
        == f"orders: 0 dead letters moved to the table in {tmp_path} (0 new files), 1 left in {dead}\n"
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_output_pipe_is_no_failure(
    node: moldau.testing.Node, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """The table is complete before the command prints its line. The print then fails immediately, because the
    reader of the output has closed the pipe and the output is not buffered."""
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(os.fdopen(writer, "wb", 0), write_through=True) as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert export(node, tmp_path, *more) == 0


def test_exports_at_an_interval_continue_until_a_signal(
    node: moldau.testing.Node, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert export(node, tmp_path, "--interval", "0.1") == 0
    ready, first, *others = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ready == {"ready": ["export-orders"]}
    assert (first["records"], first["lag_records"]) == (2, 0)
    assert [line["records"] for line in others][:1] == [0]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--once", "--interval", "5"], "give one of --once and --interval"),
        (["--replay-dead-letters", "--from", "latest"], "--replay-dead-letters cannot be used with"),
        (["--from", "soon"], "'soon' is none of: earliest, latest, an offset"),
        (["--from", "@noon"], "@noon is neither milliseconds since 1970 nor a time"),
        (["--value", "avro"], "--value avro needs the schema: --schema @FILE.avsc"),
        (["--value", "avro", "--schema", "@/nowhere.avsc"], "cannot read /nowhere.avsc"),
        (["--value", "avro", "--schema", "nonsense"], "this is no Avro schema"),
        (["--value", "json", "--schema", "total NUMBER"], "the schema needs a type"),
        (["--value", "json", "--avro-header"], "the header and writers' schemas are Avro's"),
        (["--schema", "total INT"], "a schema is for --value json or avro"),
        (["--value", "avro", "--schema", '"int"', "--writer-schema", "x=@y"], "'x' is no id of a schema"),
        (["--catalog-property", "uri=x"], "plain Parquet goes to a local folder"),
        (["--format", "iceberg", "--catalog-property", "type=odd"], "the catalog"),
        (["--replay-dead-letters"], "holds no export"),
    ],
    ids=range(14),
)
def test_an_impossible_export_is_an_error_of_one_line(
    node: moldau.testing.Node,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    problem: str,
) -> None:
    assert export(node, tmp_path / "to", *more) == 1
    error = capsys.readouterr().err
    assert problem in error
    assert error.startswith("moldau: ")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_progress_is_printed_as_json_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    shown = LineDisplay(stream, interval_s=0)
    shown.show("export", 3, 8, 1024)
    assert json.loads(stream.getvalue()) == {"progress": "export", "done": 3, "total": 8, "bytes": 1024}
    patient = LineDisplay(stream, interval_s=3600)
    patient.show("other", 0, 8, 0)
    patient.show("other", 8, 8, 0)
    patient.end("other")
    assert "other" not in stream.getvalue()


def test_progress_is_shown_as_bars_on_a_terminal() -> None:
    from rich.console import Console
    from rich.progress import Progress

    progress = Progress(console=Console(file=io.StringIO()))
    shown = BarDisplay(progress)
    shown.show("export", 3, 8, 2_000_000)
    (bar,) = progress.tasks
    assert (bar.description, bar.completed, bar.total, bar.fields["size"]) == ("export", 3, 8, "2.0 MB")
    shown.end("export")
    assert progress.tasks == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_results_that_go_to_a_file_are_not_shown_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, results = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", results)
    with display() as shown:
        shown.show("export", 1, 8, 1000)
        print('{"job":"export"}')
        shown.end("export")
    assert results.getvalue() == '{"job":"export"}\n'
    assert "job" not in terminal.getvalue()
