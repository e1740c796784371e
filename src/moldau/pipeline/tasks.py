"""Set-up of a process in which Spark runs tasks, or plans queries, one after the other."""

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Final

from moldau.client.errors import ToolError
from moldau.objects.storage import StorageError
from moldau.runtime.errors import KafkaError

_FREEZES_LEFT: Final = iter(range(2))
"""The first task imports more: PyArrow imports pandas at the first array of numpy."""


_SPARKS_PROCESS: Final = frozenset(
    {"SPARK_REUSE_WORKER", "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH"}
)
"""Environment variables of which one at least is set in each process that Spark starts. The first is not set
in the one that plans batches of streams.
"""


def settle() -> None:
    """Call it at the beginning of a task or a plan, when its modules are imported; does nothing elsewhere.

    PySpark collects garbage after each of them. A worker with this package's modules has 70,000 objects, and
    collecting them takes 35 ms, in which it could decode 200,000 records. So the objects that exist when the
    first two begin are frozen.
    """
    if _is_sparks() and next(_FREEZES_LEFT, None) is not None:
        gc.collect()
        gc.freeze()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Let Spark report user errors in one line; others keep their traceback.

    A process of Spark's ends after an error, so the setting ends with it. Does nothing elsewhere.
    """
    try:
        yield
    except (ToolError, KafkaError, StorageError, OSError):
        if _is_sparks():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_sparks() -> bool:
    return not _SPARKS_PROCESS.isdisjoint(os.environ)
