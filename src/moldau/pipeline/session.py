"""The Spark session of a job, and units run on it."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from moldau.client.errors import ToolError
from moldau.pipeline.planning import OffsetRange

T = TypeVar("T")

DEFAULT_MASTER: Final = "local[*,4]"
"""Plain ``local[*]`` never runs a failed task again."""
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
}
_LOGGING: Final = os.path.join(os.path.dirname(__file__), "log4j2.properties")
_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def open_session(master: str | None = None, **settings: str) -> SparkSession:
    """A session with the settings that jobs are measured with; the running one where there is one.

    The master is what ``spark-submit`` says, and else every core of this machine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("moldau")
    submitted = "SPARK_ENV_LOADED" in os.environ and "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None or not submitted:
        builder = builder.master(master or DEFAULT_MASTER)
    options = f"-Dlog4j2.configurationFile=file:{_LOGGING} -XX:+UseSerialGC"
    for key, value in {**SETTINGS, "spark.driver.extraJavaOptions": options, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class SparkUnits:
    """Runs functions on Spark, a task for each unit; the session is made when there is work.

    A context manager that stops the session at the end.
    """

    def __init__(self, master: str | None = None) -> None:
        self._master = master
        self._session: SparkSession | None = None

    def __call__(self, function: Callable[[OffsetRange], T], units: Sequence[OffsetRange]) -> list[T]:
        """What the function returned for each unit, in order. Raises :class:`ToolError`."""
        if self._session is None:
            self._session = open_session(self._master)
        context = self._session.sparkContext
        try:
            found: list[T] = context.parallelize(units, len(units)).map(function).collect()
        except Exception as error:
            raise ToolError(f"a task failed: {task_error(error)}") from error
        return found

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


def task_error(error: BaseException) -> str:
    """What a task raised, in one line, out of the text that Spark makes of it."""
    text = str(error) if isinstance(error, PySparkException) else _text(error)
    found = _PYTHON_ERROR.findall(text)
    ours = [line for name, line in found if not name.startswith(("Py4J", "PythonException", "Spark"))]
    if ours:
        return str(ours[-1])
    return next(iter(text.splitlines()), type(error).__name__)


def _text(error: Any) -> str:
    cause = getattr(error, "java_exception", None)
    return str(error) if cause is None else str(cause.toString())
