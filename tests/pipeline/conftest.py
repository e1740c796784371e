"""One Spark session for all tests of the pipeline: a JVM takes seconds to start."""

from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import connector_jars, missing_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session; it has two threads, and tries a task twice."""
    if reason := missing_spark():
        pytest.skip(reason)
    from moldau.pipeline.session import open_session

    settings = {"spark.driver.memory": "512m"}
    if jars := connector_jars():
        settings["spark.jars"] = ",".join(jars)
    session = open_session("local[2,2]", **settings)
    yield session
    session.stop()
