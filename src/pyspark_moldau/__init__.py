"""Spark looks for data sources in packages whose names begin with ``pyspark_``. Therefore
``format("moldau")`` needs no registration."""

from moldau.pipeline.data_source import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
