"""Runs jobs of the pipeline from the command line: once, or until a signal arrives."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from moldau.cli.output import json_line, print_json_line
from moldau.cli.pipeline.progress_display import display

if TYPE_CHECKING:
    from moldau.pipeline.job_scheduler import Job, Round
    from moldau.pipeline.jobs import JobsFile

T = TypeVar("T")

PARENT_POLL_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark's master; by default all cores of this machine."),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="KEY=VALUE",
        help="Value of diskless.storage.* or rsm.config.* that the brokers do not report; may be repeated.",
    ),
]


def check_spark() -> None:
    """Check the packages that jobs need, without importing them. Raises
    :class:`moldau.client.errors.ToolError` for missing packages."""
    from moldau.pipeline.requirements import check_requirements

    check_requirements()


def run_job_once(name: str, work: Callable[[Any], T], master: str | None) -> T:
    """Run one round of a job in its own session."""
    from moldau.pipeline.session import SparkPool

    with display() as shown, SparkPool(master, shown) as pool:
        return work(pool.units(name))


def repeat_job(job: "Job", master: str | None) -> None:
    """Run a job at its interval until a signal arrives."""
    from moldau.pipeline.jobs import JobsFile

    run_jobs(JobsFile((job,), master, {}, "", None, None))


def run_jobs(found: "JobsFile", *, with_parent: bool = False) -> None:
    """Run a file's jobs until SIGTERM or SIGINT arrives, or until the parent process ends. Each round of a
    job prints a line on stdout."""
    from moldau.pipeline.job_scheduler import JobRunner
    from moldau.pipeline.metrics_server import MetricsServer
    from moldau.pipeline.session import SparkPool
    from moldau.runtime.clock import SystemClock

    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(display())
        pool = stack.enter_context(SparkPool(found.master, shown, **found.spark))
        runner = JobRunner(found.jobs, pool, SystemClock(), _print_progress, history_path=found.history)
        stack.enter_context(_signals_restored())
        _on_signal(_leave)
        port = None
        if found.metrics_port is not None:
            server = MetricsServer(found.metrics_host, found.metrics_port, runner.meters)
            port = stack.enter_context(server).port
        # When Spark's session starts, it replaces the handler of SIGINT. Therefore it starts before this
        # function sets its own handler.
        pool.session()
        _on_signal(lambda number, frame: runner.stop())
        if with_parent:
            threading.Thread(target=_watch_parent, args=(runner.stop,), daemon=True).start()
        _print_ready([job.name for job in found.jobs], port)
        runner.run()


def _watch_parent(stop: Callable[[], None]) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)  # noqa: TID251 - a thread of a tool, without an event loop
    stop()


def _print_ready(names: list[str], metrics_port: int | None) -> None:
    line: dict[str, Any] = {"ready": names}
    if metrics_port is not None:
        line["metrics_port"] = metrics_port
    print(json_line(line), flush=True)


def _print_progress(done: "Round") -> None:
    with contextlib.suppress(BrokenPipeError):  # The jobs continue if the reader closes the pipe.
        print_json_line(done.to_json())
        sys.stdout.flush()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _on_signal(handler: Callable[[int, FrameType | None], Any]) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, handler)


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)
