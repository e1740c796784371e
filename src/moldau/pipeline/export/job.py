"""``moldau pipeline export``: one round of an export, on Spark or in this process."""

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sqlalchemy.exc import DBAPIError

from moldau.client.cluster import connected
from moldau.client.errors import ToolError
from moldau.pipeline.export.catalogs import check_no_iceberg, open_catalog
from moldau.pipeline.export.iceberg import export_iceberg, replay_iceberg
from moldau.pipeline.export.parquet import (
    ParquetFolder,
    check_no_foreign,
    check_no_parquet,
    export_parquet,
    replay_parquet,
)
from moldau.pipeline.export.progress import StartAt, find_starts, lag_records
from moldau.pipeline.export.rounds import ExportRequest, RoundOutcome
from moldau.pipeline.export.targets import writing_to
from moldau.pipeline.export.units import WrittenUnit
from moldau.pipeline.reading.fetching import find_bounds
from moldau.pipeline.reading.tier_segments import find_tier_access
from moldau.pipeline.reading.topic_source import TopicSource
from moldau.pipeline.reading.wal_access import find_wal_access
from moldau.pipeline.unit_runs import Lag, RunUnits
from moldau.pipeline.values.column_changes import ColumnChange
from moldau.pipeline.values.formats import RAW, ValueFormat

ICEBERG: Final = "iceberg"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Options of an export: the source and the destination."""

    bootstrap: str
    topic: str
    folder: str
    """A local folder. For Iceberg, it may also be the name of a catalog."""
    table_format: str
    unit_records_max: int = 1_000_000
    may_lose: bool = False
    timeout_s: float = 30.0
    values: ValueFormat = RAW
    start: StartAt | None = None
    replay: bool = False
    """Decode the dead letters again, and read no new records."""
    changes: Sequence[ColumnChange] = ()
    """Columns whose type changes in the replay."""
    catalog_properties: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    """``diskless.storage.*`` and ``rsm.config.*``. They are needed if the brokers do not provide these
    configs."""


class Exported(NamedTuple):
    """The result of a round. ``lag_records`` is the number of offsets that are in the topic but not in the
    table."""

    files: list[WrittenUnit]
    lag_records: int
    dead_letters_at: str
    dead_letters_left: int = 0
    """Number of dead letters that remain after a replay."""

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def dead_letters(self) -> int:
        return sum(file.dead.records for file in self.files if file.dead)


def export_once(job: ExportJob, run: RunUnits, lag: Lag | None = None) -> Exported:
    """Run one round. ``run`` executes the units of the round. ``lag`` is set when the round is planned, and
    again at its end.

    Raises :class:`moldau.client.errors.ToolError` and ``KafkaError``.
    """
    lag = lag or Lag()
    lag.forget()
    look = functools.partial(
        find_bounds, job.bootstrap, job.topic, committed_only=True, timeout_s=job.timeout_s
    )
    source = asyncio.run(_source(job))
    starts = None
    if job.start is not None:
        starts = functools.partial(find_starts, job.bootstrap, job.topic, job.start, timeout_s=job.timeout_s)
    request = ExportRequest(source, look, run, job.unit_records_max, job.values, starts, lag, job.changes)
    outcome = _round(job, request)
    files = [file for file in outcome.written if file.path or file.dead]
    left = lag_records(outcome.covered, look())
    lag.records = left
    return Exported(files, left, outcome.dead_letters, outcome.dead_letters_left)


async def _source(job: ExportJob) -> TopicSource:
    # The topic is looked up before anything is created. A mistyped name therefore creates nothing.
    async with connected(job.bootstrap, job.timeout_s) as client:
        topic = await client.topic(job.topic)
        wal = await find_wal_access(client, topic, job.storage)
        return TopicSource(
            bootstrap=job.bootstrap,
            topic=job.topic,
            topic_id=str(topic.topic_id),
            may_lose=job.may_lose,
            timeout_s=job.timeout_s,
            wal=wal,
            tier=await find_tier_access(client, topic, job.storage, wal),
        )


def _round(job: ExportJob, request: ExportRequest) -> RoundOutcome:
    try:
        with writing_to(job.folder):
            return _round_of(job, request)
    except DBAPIError as error:  # a catalog in a database raises this error
        reason = " ".join(str(error.orig).split())
        raise ToolError(f"the catalog of {job.folder} does not work: {reason}") from error


def _round_of(job: ExportJob, request: ExportRequest) -> RoundOutcome:
    if job.table_format == ICEBERG:
        catalog = open_catalog(job.folder, job.catalog_properties)
        check_no_parquet(catalog.properties.get("warehouse") or "")
        return (replay_iceberg if job.replay else export_iceberg)(request, catalog)
    if "://" in job.folder or job.catalog_properties:
        raise ToolError("plain Parquet goes to a local folder: --format iceberg reaches other places")
    check_no_iceberg(job.folder)
    folder = ParquetFolder(job.folder)
    check_no_foreign(folder)
    return (replay_parquet if job.replay else export_parquet)(request, folder)
