"""Jobs at intervals: the syntax of their file, and the reports and metrics of their rounds."""

import json
import pathlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("pyiceberg", reason="needs PyIceberg: pip install 'moldau[spark]'")

from moldau.client.errors import ToolError
from moldau.pipeline.job_scheduler import Job, JobRunner, Round
from moldau.pipeline.jobs import read_jobs
from moldau.pipeline.metrics_server import MetricsServer
from moldau.pipeline.unit_runs import Lag
from moldau.runtime.clock import SystemClock

WAIT_S = 60.0


class Pool:
    """A replacement for the Spark pool. The jobs of these tests have no units to run."""

    cancelled = False

    def units(self, job: str) -> Any:
        return job

    def cancel(self) -> None:
        self.cancelled = True


def run(jobs: list[Job], rounds: int, **more: Any) -> tuple[JobRunner, list[Round]]:
    """Run until ``rounds`` rounds were reported, and at least one for each job."""
    told: list[Round] = []

    def tell(done: Round) -> None:
        told.append(done)
        if len(told) >= rounds and len({each.job for each in told}) == len(jobs):
            runner.stop()

    runner = JobRunner(jobs, Pool(), SystemClock(), tell, **more)
    watchdog = threading.Timer(WAIT_S, runner.stop)
    watchdog.start()
    runner.run()
    watchdog.cancel()
    assert len(told) >= rounds
    return runner, told


def failing(problem: Exception) -> Callable[[Any], Any]:
    def work(run: Any) -> Any:
        raise problem

    return work


def test_a_failed_job_is_reported_and_does_not_delay_other_jobs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history.jsonl"
    lag = Lag()
    lag.records = 7
    good = Job("good", "export", 0.001, lambda run: {"records": 2, "bytes": 10}, lag)
    bad = Job("bad", "export", 0.001, failing(ToolError("topic t\ndoes not exist")))
    ours = Job("ours", "export", 0.001, failing(ValueError("oops")))
    runner, told = run([good, bad, ours], 12, history_path=str(path))
    errors = {done.job: done.error for done in told}
    assert errors == {"good": None, "bad": "topic t does not exist", "ours": "ValueError: oops"}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) >= 12
    assert {line["job"]: line.get("records") for line in lines} == {"good": 2, "bad": None, "ours": None}
    text = runner.meters.render().decode()
    good_rounds = len(runner.history["good"])
    assert f'moldau_pipeline_Jobs_Records_total{{job="good",kind="export"}} {2 * good_rounds}\n' in text
    assert 'moldau_pipeline_Jobs_LagRecords{job="good",kind="export"} 7\n' in text
    assert 'LagRecords{job="bad"' not in text
    bad_rounds = len(runner.history["bad"])
    assert f'moldau_pipeline_Jobs_FailedRounds_total{{job="bad",kind="export"}} {bad_rounds}\n' in text


def test_the_lag_of_a_node_that_is_down_is_not_known(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        'bootstrap = "127.0.0.1:9"\ntimeout = 0.2\n'
        f'[[job]]\nkind = "export"\ntopic = "t"\nto = "{tmp_path}/to"\ninterval = 0.01\n'
    )
    runner, told = run(list(read_jobs(str(path)).jobs), 1)
    assert told[0].error is not None
    assert (
        'moldau_pipeline_Jobs_LagRecords{job="export-t",kind="export"} NaN' in runner.meters.render().decode()
    )


def test_running_jobs_are_cancelled_at_the_end() -> None:
    pool = Pool()
    begun = threading.Event()

    def work(run: Any) -> Any:
        begun.set()
        while not pool.cancelled:
            threading.Event().wait(0.001)
        raise ToolError("a task failed: cancelled")

    told: list[Round] = []
    runner = JobRunner([Job("long", "export", 1.0, work)], pool, SystemClock(), told.append)
    threading.Thread(target=lambda: begun.wait(WAIT_S) and runner.stop()).start()
    runner.run()
    assert told == []


def test_a_history_file_that_cannot_be_written_is_reported_at_the_start(tmp_path: pathlib.Path) -> None:
    job = Job("good", "export", 1.0, lambda run: {})
    with pytest.raises(ToolError, match=r"the history .*nowhere.* cannot be written: No such file"):
        JobRunner([job], Pool(), SystemClock(), print, history_path=str(tmp_path / "nowhere" / "lines"))


def test_metrics_are_served() -> None:
    runner = JobRunner([Job("good", "export", 1.0, lambda run: {})], Pool(), SystemClock(), lambda done: None)
    with MetricsServer("127.0.0.1", 0, runner.meters) as server:
        address = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=WAIT_S) as answer:
            assert b'moldau_pipeline_Jobs_Rounds_total{job="good",kind="export"} 0' in answer.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(address, timeout=WAIT_S)
        with pytest.raises(ToolError, match="metrics cannot be served"):
            MetricsServer("127.0.0.1", server.port, runner.meters)


GOOD = """
bootstrap = "127.0.0.1:9092"
master = "local[2]"
metrics_port = 0
history = "history.jsonl"
[spark]
"spark.driver.memory" = "512m"
[storage]
"diskless.storage.url" = "file:///objects"
[[job]]
kind = "export"
topic = "orders"
to = "exports/orders"
interval = 5
[[job]]
kind = "export"
name = "decoded"
topic = "orders"
to = "lake"
format = "iceberg"
value = "json"
schema = "@orders.ddl"
from = "latest"
catalog = { type = "sql", "s3.force-virtual-addressing" = true }
"""


def test_a_file_of_jobs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(GOOD)
    (tmp_path / "orders.ddl").write_text("total INT")
    found = read_jobs(str(path))
    assert [(job.name, job.kind, job.interval_s) for job in found.jobs] == [
        ("export-orders", "export", 5.0),
        ("decoded", "export", 60.0),
    ]
    assert (found.master, found.metrics_port, found.history) == ("local[2]", 0, "history.jsonl")
    assert found.spark == {"spark.driver.memory": "512m"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no jobs: write [[job]] for each"),
        ("job = 3", "job is tables: [[job]], not 3"),
        ("x", "Expected '=' after a key"),
        ("[[job]]", "job 1: kind is missing"),
        ('[[job]]\nkind = "dance"', "job 1: kind is one of export"),
        ('[[job]]\nkind = "export"', "job 1: topic is missing"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = 3', "job 1: to is a text, not 3"),
        (
            '[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\ninterval = 0',
            "interval must be more than 0, not 0",
        ),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nfrm = "x"', "job 1: unknown: frm"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nfrom = "x"', "'x' is none of: earliest"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nvalue = "avro"', "--value avro needs the schema"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nvalue = "xml"', "values are raw, json, avro"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nformat = "csv"', "format is parquet or iceberg"),
        ('[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\nschema = "a INT"', "a schema is for --value json"),
        ('bootstrap = "nowhere"\n[[job]]', "'nowhere' is not HOST:PORT"),
    ],
    ids=range(15),
)
def test_a_mistake_in_a_file_is_one_line(tmp_path: pathlib.Path, text: str, problem: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(ToolError) as failure:
        read_jobs(str(path))
    assert problem in str(failure.value)
    assert "\n" not in str(failure.value)


def test_two_jobs_have_two_names(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(2 * '[[job]]\nkind = "export"\ntopic = "t"\nto = "x"\n')
    with pytest.raises(ToolError, match="another job is called export-t"):
        read_jobs(str(path))
    with pytest.raises(ToolError, match="cannot read"):
        read_jobs(str(tmp_path / "absent.toml"))
