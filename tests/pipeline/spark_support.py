"""What tests on Spark need before they can run."""

import os
import pathlib

from moldau.pipeline.requirements import missing_java, missing_packages

CONNECTOR = pathlib.Path(__file__).resolve().parents[2] / ".tools" / "spark-kafka"
"""Jars of Spark's Kafka connector, where ``tools/fetch_clients.py`` put them."""


def missing_spark() -> str | None:
    """Why tests on Spark are to be skipped here; with ``CI=true`` that is a failure."""
    reason = missing_packages() or missing_java()
    if reason is not None and os.environ.get("CI") == "true":
        raise RuntimeError(reason)
    return reason


def connector_jars() -> list[str]:
    """The connector and what it needs; empty where they were not fetched."""
    return sorted(str(path) for path in CONNECTOR.glob("*.jar"))
