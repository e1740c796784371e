"""Runs several jobs at intervals in one process with one Spark session. It records the history, lag and bytes
of each job.

Each job has a thread, so a long job does not delay other jobs. Spark shares the cores among the jobs. A
failed round is reported and counted. It is safe to repeat any job, so a job runs again when its next round is
due.
"""

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from moldau.client.errors import ToolError
from moldau.metrics import Counter, Meters
from moldau.pipeline.unit_runs import Lag, RunUnits
from moldau.runtime.clock import Clock
from moldau.runtime.errors import KafkaError

HISTORY_MAX: Final = 100
"""Maximum number of rounds in memory, for each job."""
STOP_TIMEOUT_S: Final = 20.0
_now_s: Final = time.monotonic  # noqa: TID251 - jobs run in threads, without an event loop

Report = Mapping[str, Any]
"""The result of a round as JSON. ``records``, ``bytes`` and ``dead_letters`` are also counted in metrics."""


@dataclass(frozen=True, slots=True)
class Job:
    """Periodic work. ``run`` raises ``ToolError`` or ``KafkaError``."""

    name: str
    kind: str
    interval_s: float
    run: Callable[[RunUnits], Report]
    lag: Lag | None = None
    """The lag of the target behind the source. It is ``None`` for jobs that do not copy records."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a job. The history has one line for each round. Times are in milliseconds."""

    job: str
    kind: str
    started_ms: int
    took_ms: int
    error: str | None = None
    report: Report = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {
            "job": self.job,
            "kind": self.kind,
            "started_ms": self.started_ms,
            "took_ms": self.took_ms,
        }
        if self.error is not None:
            line["error"] = self.error
        return {**line, **self.report}


class Pool(Protocol):
    """The object that runs units. :class:`moldau.pipeline.session.SparkPool` implements it."""

    def units(self, job: str, /) -> RunUnits: ...

    def cancel(self) -> None: ...


class JobRunner:
    """Runs jobs until :meth:`stop`."""

    def __init__(
        self,
        jobs: Sequence[Job],
        pool: Pool,
        clock: Clock,
        tell: Callable[[Round], None],
        *,
        meters: Meters | None = None,
        history_path: str | None = None,
    ) -> None:
        """``tell`` is called after each round, from the thread of the job. Only one call runs at a time.

        Raises :class:`ToolError` if the history cannot be written at the start. Later failures to write it
        are ignored.
        """
        if history_path is not None:
            try:
                _append(history_path, "")
            except OSError as error:
                raise ToolError(f"the history {history_path} cannot be written: {error.strerror}") from error
        self._jobs = jobs
        self._pool = pool
        self._clock = clock
        self._tell = tell
        self._telling = threading.Lock()
        self._stopping = threading.Event()
        self._history_path = history_path
        self.history: dict[str, deque[Round]] = {job.name: deque(maxlen=HISTORY_MAX) for job in jobs}
        self.meters = meters or Meters()
        self._meters = {job.name: _JobMeters(self.meters, job) for job in jobs}

    def run(self) -> None:
        """Run every job immediately, and then at its interval. Returns after a call of :meth:`stop`."""
        threads = [
            threading.Thread(target=self._repeat, args=(job,), name=f"moldau-job-{job.name}", daemon=True)
            for job in self._jobs
        ]
        for thread in threads:
            thread.start()
        try:
            self._stopping.wait()
        finally:
            self._stopping.set()
            self._pool.cancel()
            for thread in threads:
                thread.join(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Let :meth:`run` cancel the running jobs and return. This method may be called from a signal
        handler."""
        self._stopping.set()

    def _repeat(self, job: Job) -> None:
        while not self._stopping.is_set():
            began = _now_s()
            self.run_once(job)
            left = job.interval_s - (_now_s() - began)
            self._stopping.wait(max(0.0, left))

    def run_once(self, job: Job) -> Round:
        """Run one round. Errors are part of the result."""
        started_ms, began = self._clock.now_ms(), _now_s()
        error: str | None = None
        report: Report = {}
        try:
            report = job.run(self._pool.units(job.name))
        except (ToolError, KafkaError, OSError) as problem:
            error = " ".join(str(problem).split()) or type(problem).__name__
        except Exception as problem:  # a defect in one job must not stop other jobs
            error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        done = Round(job.name, job.kind, started_ms, round((_now_s() - began) * 1000), error, report)
        if error is None or not self._stopping.is_set():
            self._note(done)
        return done

    def _note(self, done: Round) -> None:
        with self._telling:
            self.history[done.job].append(done)
            self._meters[done.job].note(done)
            if self._history_path is not None:
                with contextlib.suppress(OSError):
                    _append(self._history_path, json.dumps(done.to_json(), default=str) + "\n")
            self._tell(done)


def _append(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class _JobMeters:
    def __init__(self, meters: Meters, job: Job) -> None:
        scope = meters.scoped("moldau.pipeline", "Jobs")
        tags = {"job": job.name, "kind": job.kind}
        self._rounds = scope.counter("Rounds", "Rounds that were done.", **tags)
        self._failed = scope.counter("FailedRounds", "Rounds that failed.", **tags)
        self._sums: dict[str, Counter] = {
            "records": scope.counter("Records", "Records that rounds wrote.", **tags),
            "bytes": scope.counter("Bytes", "Bytes that rounds wrote.", **tags),
            "dead_letters": scope.counter("DeadLetters", "Records that could not be decoded.", **tags),
        }
        lag = job.lag
        if lag is not None:
            scope.gauge(
                "LagRecords",
                lambda: lag.records,
                "Offsets that the source has and the target lacks; NaN while the number is not known.",
                **tags,
            )
        self._last_ms = 0
        self._took_ms = 0
        scope.gauge("LastSuccessTimeMs", lambda: self._last_ms, "Start of the last successful round.", **tags)
        scope.gauge("LastRoundMs", lambda: self._took_ms, "Duration of the last round.", **tags)

    def note(self, done: Round) -> None:
        self._rounds.mark()
        self._took_ms = done.took_ms
        if done.error is not None:
            self._failed.mark()
        else:
            self._last_ms = done.started_ms
        for key, counter in self._sums.items():
            counter.mark(float(done.report.get(key, 0)))
