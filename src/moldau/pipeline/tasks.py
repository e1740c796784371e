"""Sets up a process in which Spark runs tasks or plans queries, one after the other."""

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Final

from moldau.client.errors import ToolError
from moldau.objects.storage import StorageError
from moldau.runtime.errors import KafkaError

_FREEZES_LEFT: Final = iter(range(2))
"""Objects are frozen twice, because the first task imports further modules after the first freeze. For
example, PyArrow imports pandas when it gets the first numpy array."""


_SPARKS_PROCESS: Final = frozenset(
    {"SPARK_REUSE_WORKER", "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH"}
)
"""Environment variables. Each process that Spark starts has at least one of them. The first variable is not
set in the process that plans batches of streams."""


def settle() -> None:
    """Exclude the existing objects from garbage collection ("freeze" them). Call this at the start of a task
    or a plan, after the imports. Outside Spark's processes it does nothing.

    PySpark runs the garbage collector after each task or plan. A worker with this package's modules has
    70,000 objects, and a collection takes 35 ms. In 35 ms a worker could decode 200,000 records. Therefore
    the objects that exist at the start of the first two tasks are frozen.
    """
    if _is_sparks() and next(_FREEZES_LEFT, None) is not None:
        gc.collect()
        gc.freeze()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Let Spark report user errors in one line. Other errors keep their traceback.

    Spark ends the process after an error, so later errors are not affected. In other processes this does
    nothing.
    """
    try:
        yield
    except (ToolError, KafkaError, StorageError, OSError):
        if _is_sparks():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_sparks() -> bool:
    return not _SPARKS_PROCESS.isdisjoint(os.environ)
