"""``moldau pipeline export``: one round of an export on Spark."""

import functools
from dataclasses import dataclass
from typing import Final

from moldau.pipeline.fetching import find_bounds
from moldau.pipeline.iceberg_export import export_iceberg, open_catalog
from moldau.pipeline.parquet_export import ParquetFolder, RunUnits, export_parquet
from moldau.pipeline.planning import Source
from moldau.pipeline.session import SparkUnits
from moldau.pipeline.units import Written

ICEBERG: Final = "iceberg"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What is exported, and where to."""

    bootstrap: str
    topic: str
    folder: str
    table_format: str
    unit_records_max: int = 1_000_000
    may_lose: bool = False
    timeout_s: float = 30.0


def run_export(job: ExportJob, master: str | None = None) -> list[Written]:
    """Do one round; the files that it added. Raises :class:`moldau.client.errors.ToolError`."""
    with SparkUnits(master) as run:
        return export_once(job, run)


def export_once(job: ExportJob, run: RunUnits) -> list[Written]:
    """One round with units run wherever ``run`` runs them."""
    look = functools.partial(
        find_bounds, job.bootstrap, job.topic, committed_only=True, timeout_s=job.timeout_s
    )
    # Asked before anything is made, so that a mistyped topic leaves nothing behind.
    source = Source(
        bootstrap=job.bootstrap,
        topic=job.topic,
        topic_id=look().topic_id,
        may_lose=job.may_lose,
        timeout_s=job.timeout_s,
    )
    if job.table_format == ICEBERG:
        return export_iceberg(source, open_catalog(job.folder), look, run, job.unit_records_max)
    return export_parquet(source, ParquetFolder(job.folder), look, run, job.unit_records_max)
