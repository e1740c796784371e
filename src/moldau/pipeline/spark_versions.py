"""Interfaces of Python data sources that only newer versions of Spark have.

Moldau runs on Spark 4.0 and newer. The results are the same even if an interface is missing.
:func:`note_missing` then logs the disadvantage, and the first version that has the interface.
"""

import functools
import importlib.util
import inspect
import logging
from typing import Any, Final

from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

HAS_FILTERS: Final = hasattr(datasource, "Filter")
"""Whether Spark passes the filters of a query to readers. Spark 4.1 and newer do this."""
HAS_READ_LIMITS: Final = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark passes the start and the maximum size of a batch to stream readers. Spark 4.2 and newer do
this."""


_TIMEZONE: Final[Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""The argument for the time zone. Before Spark 4.2 this argument does not exist, and the zone is always UTC.
"""


def arrow_schema(schema: StructType) -> Any:
    """Convert a schema of Spark to a schema of Arrow, with timestamps in UTC."""
    return to_arrow_schema(schema, **_TIMEZONE)


@functools.cache
def note_missing(feature: str, since: str) -> None:
    """Log what is different without an interface, and the version of Spark that has the interface. The text
    ``feature`` describes the difference. Each text is logged once in a process."""
    import pyspark

    logger.warning("%s (needs Spark %s, and this is %s)", feature, since, pyspark.__version__)
