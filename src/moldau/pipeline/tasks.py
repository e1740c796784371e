"""What holds for a process in which Spark runs tasks, or plans queries, one after the other."""

import gc
import os
from typing import Final

_FREEZES_LEFT: Final = iter(range(2))
"""The first task imports more on its way: PyArrow takes pandas when it first sees an array of numpy."""


def settle() -> None:
    """Call at the begin of a task or a plan, when its modules are imported; does nothing elsewhere.

    PySpark collects garbage behind each of them. A worker with this package's modules has 70,000 objects, and
    to go through them takes 35 ms, in which it decodes 200,000 records. So what is there when the first two
    begin is taken out of the collector's sight.
    """
    if "SPARK_REUSE_WORKER" in os.environ and next(_FREEZES_LEFT, None) is not None:
        gc.collect()
        gc.freeze()
