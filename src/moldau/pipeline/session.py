"""The Spark session of a process, and the units that run on it."""

import contextlib
import os
import pathlib
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from moldau.client.errors import ToolError
from moldau.pipeline.tasks import settle
from moldau.runtime.entropy import SystemEntropy

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_MASTER: Final = "local[*,4]"
"""The default master. It sets the maximum number of failures of a task, because plain ``local[*]`` never
repeats a failed task."""
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
}
QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""Java option for jobs. The tasks of jobs run in Python, and Java only handles ranges of offsets. Without
this option, Java's second compiler would work for some minutes without a benefit. In this time it would use
more CPU time than all other work."""
POLL_S: Final = 0.5
STANDALONE: Final = "spark://"
YARN: Final = "yarn"
YARN_FOLDERS: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
MASTERS: Final = ("local", STANDALONE, "k8s://", YARN)
CONNECT_TIMEOUT_S: Final = 10.0
_LOGGING: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def open_session(master: str | None = None, **settings: str) -> SparkSession:
    """A session with the settings for jobs. If a session is already running, that session is returned.

    The session uses ``master``. Without ``master`` it uses the master of ``spark-submit``, and without
    ``spark-submit`` all cores of this machine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("moldau")
    submitted = "SPARK_ENV_LOADED" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None or not submitted:
        builder = builder.master(master or DEFAULT_MASTER)
    options = java_options(_LOGGING)
    for key, value in {**SETTINGS, "spark.driver.extraJavaOptions": options, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def java_options(logging: str) -> str:
    """Java options of the driver, including a file of log settings. Spark splits options at spaces, so the
    file is given as a URI, which contains no spaces."""
    return f"-Dlog4j2.configurationFile={pathlib.Path(logging).as_uri()} -XX:+UseSerialGC"


def check_master(master: str | None) -> None:
    """Raises :class:`ToolError` for a standalone master that does not listen, because Spark itself would
    retry for a minute. Also raises it for an invalid master, for which Spark's launcher would only print a
    stack trace."""
    if master is None:
        return
    if not master.startswith(MASTERS):
        raise ToolError(f"Spark has no master {master!r}: it is one of {', '.join(MASTERS)}")
    if master.startswith(YARN) and not any(os.environ.get(name) for name in YARN_FOLDERS):
        raise ToolError(f"Spark's master {master} needs {' or '.join(YARN_FOLDERS)} in the environment")
    if not master.startswith(STANDALONE):
        return
    problem: Exception | None = None
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
                return
        except (OSError, ValueError, OverflowError) as error:
            problem = error
    raise ToolError(f"Spark's master {master} cannot be reached: {problem}")


class Display(Protocol):
    """Shows the progress of jobs. Several threads call it."""

    def show(self, job: str, done: int, total: int, size_bytes: int) -> None:
        """Show the progress: the number ``done`` of ``total`` units, and the bytes that these units have
        written."""
        ...

    def end(self, job: str) -> None: ...


class SparkPool:
    """The session that the jobs of a process share. It is created for the first work, and stopped at the
    end."""

    def __init__(self, master: str | None = None, display: Display | None = None, **settings: str) -> None:
        self._master = master
        self._display = display
        self._settings = settings
        self._session: SparkSession | None = None
        self._starting = threading.Lock()

    def session(self) -> SparkSession:
        """The session, started if necessary. Raises :class:`ToolError` when Spark does not start."""
        with self._starting:
            if self._session is None:
                check_master(self._master)
                options = f"{java_options(_LOGGING)} {QUICK_COMPILER}"
                settings = {"spark.driver.extraJavaOptions": options, **self._settings}
                try:
                    self._session = open_session(self._master, **settings)
                except Exception as error:
                    raise ToolError(f"Spark does not start: {task_error(error)}") from error
            return self._session

    def units(self, job: str) -> "SparkUnits":
        return SparkUnits(self, job, self._display)

    def cancel(self) -> None:
        """Cancel the running work. Callers that wait for the work get an exception."""
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.sparkContext.cancelAllJobs()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None


class SparkUnits:
    """Runs a function on Spark, with one task for each unit."""

    def __init__(self, pool: SparkPool, job: str, display: Display | None = None) -> None:
        self._pool = pool
        self._job = job
        self._display = display

    def __call__(self, function: Callable[[U], T], units: Sequence[U]) -> list[T]:
        """Run the function for each unit; returns the results in order. Raises :class:`ToolError`."""
        if not units:
            return []
        context = self._pool.session().sparkContext
        made = context.accumulator(0)
        group = f"{self._job}-{SystemEntropy().uuid4()}"
        context.setJobGroup(group, self._job)
        try:
            with self._shown(group, len(units), made):
                job = context.parallelize(units, len(units)).map(_Measured(function, made))
                found: list[T] = job.collect()
        except Exception as error:
            raise ToolError(f"a task failed: {task_error(error)}") from error
        return found

    @contextlib.contextmanager
    def _shown(self, group: str, total: int, made: Accumulator[int]) -> Iterator[None]:
        """Report the progress of the units from a separate thread while the ``with`` block runs."""
        display = self._display
        if display is None:
            yield
            return
        ended = threading.Event()
        tracker = self._pool.session().sparkContext.statusTracker()

        def watch() -> None:
            while not ended.wait(POLL_S):
                done = 0
                with contextlib.suppress(Exception):  # this fails if the session is stopping
                    for job_id in tracker.getJobIdsForGroup(group):
                        info = tracker.getJobInfo(job_id)
                        stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
                        done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
                display.show(self._job, done, total, made.value)

        display.show(self._job, 0, total, 0)
        watcher = threading.Thread(target=watch, name=f"moldau-progress-{self._job}", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            display.end(self._job)


class _Measured:
    """Calls a function, and adds the ``size_bytes`` of its results to a total. Objects of this class are sent
    to the tasks."""

    def __init__(self, function: Callable[[Any], Any], made: Accumulator[int]) -> None:
        self._function = function
        self._made = made

    def __call__(self, unit: Any) -> Any:
        settle()
        found = self._function(unit)
        self._made.add(int(getattr(found, "size_bytes", 0)))
        return found


def task_error(error: BaseException) -> str:
    """A task's exception in one line, which is extracted from the text of Spark's error."""
    text = str(error) if isinstance(error, PySparkException) else _text(error)
    found = _PYTHON_ERROR.findall(text)
    ours = [line for name, line in found if not name.startswith(("Py4J", "PythonException", "Spark"))]
    if ours:
        return str(ours[-1])
    return next(iter(text.splitlines()), type(error).__name__)


def _text(error: Any) -> str:
    cause = getattr(error, "java_exception", None)
    return str(error) if cause is None else str(cause.toString())
