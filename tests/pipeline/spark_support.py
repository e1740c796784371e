"""Checks whether Spark, Java and the jars are available that tests on Spark need."""

import os
import pathlib
from typing import NoReturn

import pytest

from moldau.pipeline.requirements import missing_java, missing_packages

TOOLS = pathlib.Path(__file__).resolve().parents[2] / ".tools"
CONNECTOR = TOOLS / "spark-kafka"
"""Jars of Spark's Kafka connector, in the folder of ``tools/fetch_clients.py``."""
ICEBERG = TOOLS / "iceberg-spark"
"""Iceberg's jar for Spark 4.0, and a driver for its catalogs in SQLite."""

SPARK_JAR = TOOLS / "moldau-spark" / "moldau-spark.jar"
"""This project's jar for Spark, in the folder of ``tools/fetch_clients.py``."""


def missing_spark() -> str | None:
    """The reason why tests on Spark are skipped here. With ``CI=true``, such tests fail instead."""
    reason = missing_packages() or missing_java()
    if reason is not None and os.environ.get("CI") == "true":
        raise RuntimeError(reason)
    return reason


def spark_jar() -> str | None:
    """The jar that decodes records in the JVM; ``None`` if it was not built."""
    return str(SPARK_JAR) if SPARK_JAR.exists() else None


def connector_jars() -> list[str]:
    """The jars of the connector and of its dependencies. The list is empty if they were not fetched."""
    return sorted(str(path) for path in CONNECTOR.glob("*.jar"))


def iceberg_jars() -> list[str]:
    """Iceberg's jar and a database driver. The list is empty if they were not fetched."""
    return sorted(str(path) for path in ICEBERG.glob("*.jar"))


def missing_jars(name: str) -> NoReturn:
    """Skip a test if its jars were not fetched. With ``CI=true``, the test fails instead."""
    message = f"{name} is missing: python tools/fetch_clients.py"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
