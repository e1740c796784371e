"""One Spark session for all tests of the pipeline, because a JVM takes seconds to start."""

from collections.abc import Iterator
from typing import Any

import pytest
from spark_support import connector_jars, iceberg_jars, missing_spark, spark_jar


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark session. It has two threads, and tries each task at most twice."""
    if reason := missing_spark():
        pytest.skip(reason)
    import pyspark

    from moldau.pipeline.session import open_session

    # By default a shuffle creates two hundred tasks. So many tasks would take seconds.
    settings = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    jars = connector_jars()
    if (jar := spark_jar()) is not None:
        jars.append(jar)
    if pyspark.__version__.startswith("4.0.") and (iceberg := iceberg_jars()):
        jars += iceberg
        settings["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    if jars:
        settings["spark.jars"] = ",".join(jars)
    session = open_session("local[2,2]", **settings)
    yield session
    session.stop()
