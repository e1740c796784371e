"""Spark looks for data sources in packages of this name. Therefore ``format("moldau")`` needs no
registration."""

from moldau.pipeline.data_source import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
