"""The configuration file of ``moldau pipeline run``: jobs, intervals, and the Spark master."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.client.cluster import parse_bootstrap
from moldau.client.errors import ToolError
from moldau.pipeline.checks.orphans import OrphansJob, reconcile_deletions
from moldau.pipeline.checks.verify import VerifyJob, verify_once
from moldau.pipeline.consolidation.job import UNIT_BYTES, ConsolidateJob, consolidate_once
from moldau.pipeline.export.job import ExportJob, export_once
from moldau.pipeline.export.options import parse_writers, resolved, value_format
from moldau.pipeline.export.progress import parse_start_at
from moldau.pipeline.job_scheduler import Job, Report
from moldau.pipeline.unit_runs import Lag

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_INTERVAL_S: Final = 60.0
USUAL_JOBS: Final[Mapping[str, Any]] = {
    "job": [{"kind": "consolidate", "interval": 60}, {"kind": "verify", "interval": 3600}]
}
"""The jobs that run if there is no configuration file."""


@dataclass(frozen=True, slots=True)
class Common:
    """Settings that all jobs of a file share."""

    bootstrap: str
    timeout_s: float
    folder: str
    """The folder from which relative paths of schemas are resolved."""
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobsFile:
    """A parsed file of jobs."""

    jobs: tuple[Job, ...]
    master: str | None
    spark: Mapping[str, str]
    metrics_host: str
    metrics_port: int | None
    history: str | None


class Table:
    """A TOML table whose keys are read one by one. If a key is never read, it is reported as a mistake."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._left = dict(values)

    def problem(self, text: str) -> ToolError:
        return ToolError(f"{self._where}: {text}")

    def _pop_setting(self, key: str, kinds: tuple[type, ...], words: str) -> Any:
        value = self._left.pop(key, None)
        if value is not None and (
            not isinstance(value, kinds) or isinstance(value, bool) is not (bool in kinds)
        ):
            raise self.problem(f"{key} is {words}, not {value!r}")
        return value

    def text(self, key: str) -> str | None:
        found: str | None = self._pop_setting(key, (str,), "a text")
        return found

    def needed(self, key: str) -> str:
        found = self.text(key)
        if not found:
            raise self.problem(f"{key} is missing")
        return found

    def number(self, key: str, default: float) -> float:
        found = self._pop_setting(key, (int, float), "a number")
        if found is not None and found <= 0:
            raise self.problem(f"{key} must be more than 0, not {found}")
        return float(default if found is None else found)

    def whole(self, key: str) -> int | None:
        found: int | None = self._pop_setting(key, (int,), "a whole number")
        return found

    def flag(self, key: str) -> bool:
        return bool(self._pop_setting(key, (bool,), "true or false"))

    def texts(self, key: str) -> dict[str, str]:
        """A nested table whose keys and values are settings."""
        found = self._pop_setting(key, (dict,), "a table") or {}
        return {name: _setting(value) for name, value in found.items()}

    def tables(self, key: str) -> list[Any]:
        found = self._pop_setting(key, (list,), f"tables: [[{key}]]") or []
        if not all(isinstance(one, dict) for one in found):
            raise self.problem(f"{key} are tables: [[{key}]]")
        return list(found)

    def end(self) -> None:
        if self._left:
            raise self.problem(f"unknown: {', '.join(sorted(self._left))}")


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_jobs(path: str, bootstrap: str | None = None) -> JobsFile:
    """Read a file in TOML. ``bootstrap`` is used if the file has no address. Raises :class:`ToolError` with
    one line."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ToolError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ToolError(f"{path}: {error}") from error
    return parse_jobs(path, found, bootstrap)


def usual_jobs(bootstrap: str | None = None) -> JobsFile:
    """The maintenance jobs of a cluster. They run if there is no configuration file."""
    return parse_jobs("the usual jobs", USUAL_JOBS, bootstrap)


def parse_jobs(path: str, found: Mapping[str, Any], bootstrap: str | None = None) -> JobsFile:
    table = Table(path, found)
    common = Common(
        bootstrap=table.text("bootstrap") or bootstrap or DEFAULT_BOOTSTRAP,
        timeout_s=table.number("timeout", 30.0),
        folder=os.path.dirname(os.path.abspath(path)),
        storage=table.texts("storage"),
    )
    parse_bootstrap(common.bootstrap)
    jobs: list[Job] = []
    for number, one in enumerate(table.tables("job"), 1):
        job = _job(Table(f"{path}: job {number}", one), common)
        if any(other.name == job.name for other in jobs):
            raise table.problem(f"job {number}: another job is called {job.name}: give it a name")
        jobs.append(job)
    if not jobs:
        raise table.problem("no jobs: write [[job]] for each")
    done = JobsFile(
        tuple(jobs),
        master=table.text("master"),
        spark=table.texts("spark"),
        metrics_host=table.text("metrics_host") or "127.0.0.1",
        metrics_port=table.whole("metrics_port"),
        history=table.text("history"),
    )
    table.end()
    return done


class Made(NamedTuple):
    """The job that one table of the configuration file describes."""

    default_name: str
    run: Callable[[Any], Report]
    lag: Lag | None = None


def _job(table: Table, common: Common) -> Job:
    kind = table.needed("kind")
    if kind not in KINDS:
        raise table.problem(f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    name = table.text("name")
    interval_s = table.number("interval", DEFAULT_INTERVAL_S)
    made = KINDS[kind](table, common)
    table.end()
    return Job(name or made.default_name, kind, interval_s, made.run, made.lag)


def _export(table: Table, common: Common) -> Made:
    topic = table.needed("topic")
    schema = table.text("schema")
    start = table.text("from")
    table_format = table.text("format") or "parquet"
    if table_format not in ("parquet", "iceberg"):
        raise table.problem(f"format is parquet or iceberg, not {table_format!r}")
    writers = {number: resolved(one, common.folder) for number, one in table.texts("writer_schemas").items()}
    try:
        values = value_format(
            table.text("value") or "raw",
            None if schema is None else resolved(schema, common.folder),
            framed=table.flag("avro_header"),
            writers=parse_writers(writers),
        )
        starts = None if start is None else parse_start_at(start)
    except ToolError as error:
        raise table.problem(str(error)) from error
    job = ExportJob(
        bootstrap=common.bootstrap,
        topic=topic,
        folder=table.needed("to"),
        table_format=table_format,
        unit_records_max=table.whole("unit_records") or 1_000_000,
        may_lose=table.flag("allow_data_loss"),
        timeout_s=common.timeout_s,
        values=values,
        start=starts,
        catalog_properties=table.texts("catalog"),
        storage=common.storage,
    )
    lag = Lag()
    return Made(f"export-{topic}", lambda run: export_report(job, run, lag), lag)


def export_report(job: ExportJob, run: Any, lag: Lag | None = None) -> Report:
    """Run one round of an export. Returns its result as JSON."""
    done = export_once(job, run, lag)
    left = {"dead_letters_left": done.dead_letters_left} if job.replay else {}
    return {
        "topic": job.topic,
        "records": done.records,
        **left,
        "bytes": done.size_bytes,
        "dead_letters": done.dead_letters,
        "dead_letters_at": done.dead_letters_at,
        "lag_records": done.lag_records,
        "files": [file.path for file in done.files if file.records],
    }


def _verify(table: Table, common: Common) -> Made:
    topics = table.text("topics")
    names = tuple(name.strip() for name in topics.split(",")) if topics else ()
    job = VerifyJob(common.bootstrap, names, timeout_s=common.timeout_s, storage=common.storage)

    def run(units: Any) -> Report:
        report = verify_once(job, units)
        if report["damages"]:
            first = report["examples"][0]
            raise ToolError(
                f"{report['damages']} damages; the first: {first['kind']}, {first['topic']}-"
                f"{first['partition']}, offsets {first['first_offset']} to {first['last_offset']}"
            )
        return report

    return Made("verify", run)


def _orphans(table: Table, common: Common) -> Made:
    job = OrphansJob(
        common.bootstrap,
        delete=table.flag("delete"),
        timeout_s=common.timeout_s,
        storage=common.storage,
    )
    return Made("orphans", lambda run: reconcile_deletions(job, run))


def _consolidate(table: Table, common: Common) -> Made:
    topics = table.text("topics")
    unit_mib = table.whole("unit_mib")
    job = ConsolidateJob(
        common.bootstrap,
        tuple(name.strip() for name in topics.split(",")) if topics else (),
        unit_bytes=UNIT_BYTES if unit_mib is None else unit_mib * 1024**2,
        timeout_s=common.timeout_s,
        storage=common.storage,
    )
    return Made("consolidate", lambda run: consolidate_once(job, run))


KINDS: Final[Mapping[str, Callable[[Table, Common], Made]]] = {
    "export": _export,
    "verify": _verify,
    "orphans": _orphans,
    "consolidate": _consolidate,
}
"""The parser for each kind of job."""
