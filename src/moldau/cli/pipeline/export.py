"""``moldau pipeline export`` and ``replay``."""

import enum
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, key_values
from moldau.cli.output import print_json, work_is_done
from moldau.cli.pipeline.jobs import MasterOption, StorageOption, check_spark, repeat_job, run_job_once
from moldau.client.cluster import parse_bootstrap

if TYPE_CHECKING:
    from moldau.pipeline.export.job import ExportJob
    from moldau.pipeline.values.formats import ValueFormat

UNIT_RECORDS_MAX = 1_000_000


class Format(enum.StrEnum):
    """Formats of tables."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"


class Values(enum.StrEnum):
    """Encodings of values."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


ExportedTopicOption = Annotated[
    str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic to export.")
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="DIR|CATALOG",
        help=(
            "A local folder, which is created if it is missing; or (Iceberg) a catalog of pyiceberg's "
            "configuration."
        ),
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Plain Parquet files, or an Iceberg table.")]
ValuesOption = Annotated[
    Values, typer.Option("--value", help="Store values unchanged, or decode them into columns of `value`.")
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="TEXT|@FILE",
        help=(
            "JSON: columns like 'total INT, note STRING' (by default derived from the records); Avro: "
            "the schema."
        ),
    ),
]
HeaderOption = Annotated[
    bool,
    typer.Option("--avro-header", help="Values begin with Confluent's header, which contains a schema id."),
]
WritersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--writer-schema",
        metavar="ID=@FILE",
        help="The Avro schema with this id in the header; may be repeated.",
    ),
]
CatalogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-property",
        metavar="KEY=VALUE",
        help="A property of the Iceberg catalog, as in pyiceberg's configuration; may be repeated.",
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="'NAME TYPE'",
        help="JSON: another type for a column, like 'qty STRING' or 'customer.age DOUBLE'; may be repeated.",
    ),
]
UnitRecordsOption = Annotated[
    int, typer.Option("--unit-records", metavar="N", min=1, help="Maximum number of offsets in a file.")
]
ExportOnceOption = Annotated[
    bool, typer.Option("--once", help="Export up to the current end of the topic, then exit (the default).")
]
ExportIntervalOption = Annotated[
    float | None,
    typer.Option(
        "--interval",
        metavar="SECONDS",
        min=0.1,
        help="Repeat the export at this interval, until a signal stops it.",
    ),
]
TableStartOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHERE",
        help=(
            "Start of the table: earliest (the default), latest, an offset, P:OFFSET,…, @TIME. A "
            "table that begins later gets the missing earlier records."
        ),
    ),
]
ReplayOption = Annotated[
    bool, typer.Option("--replay-dead-letters", help="Do the work of `moldau pipeline replay`.")
]
LossOption = Annotated[
    bool,
    typer.Option("--allow-data-loss", help="Continue after records that were deleted before their export."),
]


def export(
    topic: ExportedTopicOption,
    to: ToOption,
    once: ExportOnceOption = False,
    interval_s: ExportIntervalOption = None,
    table_format: FormatOption = Format.PARQUET,
    values: ValuesOption = Values.RAW,
    schema: SchemaOption = None,
    avro_header: HeaderOption = False,
    writer_schemas: WritersOption = None,
    start: TableStartOption = None,
    replay_dead_letters: ReplayOption = False,
    catalog_properties: CatalogOption = None,
    master: MasterOption = None,
    unit_records: UnitRecordsOption = UNIT_RECORDS_MAX,
    allow_data_loss: LossOption = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Extend a table to the end of a topic. The table gets each committed record once, even after reruns.

    With --format iceberg the folder contains a catalog in SQLite and the table moldau.TOPIC. Records whose
    values cannot be decoded go to a table of dead letters, with the reason.

    \b
    Examples:
      moldau pipeline export --topic orders --to exports/orders --format parquet
      moldau pipeline export --topic orders --to lake --format iceberg --value json --interval 60
    """
    if once and interval_s is not None:
        raise CommandError("give one of --once and --interval")
    if replay_dead_letters and (interval_s is not None or start is not None):
        raise CommandError("--replay-dead-letters cannot be used with --interval or --from")
    job = _job(
        topic=topic,
        to=to,
        table_format=table_format,
        values=lambda: _values(values, schema, avro_header, writer_schemas),
        start=start,
        replay=replay_dead_letters,
        catalog_properties=catalog_properties,
        unit_records=unit_records,
        may_lose=allow_data_loss,
        storage=storage,
        bootstrap=bootstrap,
        timeout_s=timeout_s,
    )
    if interval_s is None:
        _once(job, master, as_json)
        return
    from moldau.pipeline.job_scheduler import Job
    from moldau.pipeline.jobs import export_report

    repeat_job(Job(f"export-{topic}", "export", interval_s, functools.partial(export_report, job)), master)


def replay(
    topic: ExportedTopicOption,
    to: ToOption,
    table_format: FormatOption = Format.PARQUET,
    values: ValuesOption = Values.JSON,
    schema: SchemaOption = None,
    avro_header: HeaderOption = False,
    writer_schemas: WritersOption = None,
    columns: ColumnsOption = None,
    catalog_properties: CatalogOption = None,
    master: MasterOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Decode a table's dead letters again, and move the records that can be decoded now to the table, each
    once.

    With --column a column becomes wider where readers of the table allow it (Iceberg: INT to BIGINT, FLOAT to
    DOUBLE, longer decimals). Otherwise an additional column, for instance qty_string, stores the values that
    do not fit.

    \b
    Examples:
      moldau pipeline replay --topic orders --to lake --format iceberg --column 'qty STRING'
      moldau pipeline replay --topic orders --to lake --format iceberg --value avro --schema @order.avsc
    """
    job = _job(
        topic=topic,
        to=to,
        table_format=table_format,
        values=lambda: _values(values, schema, avro_header, writer_schemas),
        replay=True,
        columns=columns,
        catalog_properties=catalog_properties,
        bootstrap=bootstrap,
        timeout_s=timeout_s,
    )
    _once(job, master, as_json)


def _values(
    kind: Values, schema: str | None, avro_header: bool, writer_schemas: list[str] | None
) -> "ValueFormat":
    from moldau.pipeline.export.options import parse_writers, value_format

    writers = parse_writers(key_values(writer_schemas, "--writer-schema"))
    return value_format(kind.value, schema, framed=avro_header, writers=writers)


def _job(
    *,
    topic: str,
    to: str,
    table_format: Format,
    values: Any,
    bootstrap: str,
    timeout_s: float,
    start: str | None = None,
    replay: bool = False,
    columns: list[str] | None = None,
    catalog_properties: list[str] | None = None,
    unit_records: int = UNIT_RECORDS_MAX,
    may_lose: bool = False,
    storage: list[str] | None = None,
) -> "ExportJob":
    parse_bootstrap(bootstrap)
    catalog = key_values(catalog_properties, "--catalog-property")
    # The modules below import Spark and Arrow. They are imported here, so that commands without Spark start
    # fast.
    check_spark()
    from moldau.pipeline.export.job import ExportJob
    from moldau.pipeline.export.progress import parse_start_at
    from moldau.pipeline.values.column_changes import parse_column_change

    return ExportJob(
        bootstrap=bootstrap,
        topic=topic,
        folder=to,
        table_format=table_format.value,
        unit_records_max=unit_records,
        may_lose=may_lose,
        timeout_s=timeout_s,
        values=values(),
        start=None if start is None else parse_start_at(start),
        replay=replay,
        changes=[parse_column_change(one) for one in columns or ()],
        catalog_properties=catalog,
        storage=key_values(storage, "--storage"),
    )


def _once(job: "ExportJob", master: str | None, as_json: bool) -> None:
    from moldau.pipeline.jobs import export_report

    report = run_job_once(f"export-{job.topic}", functools.partial(export_report, job), master)
    with work_is_done():
        _print(job, report, as_json)


def _print(job: "ExportJob", report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    if job.replay:
        left, at = report["dead_letters_left"], report["dead_letters_at"]
        print(
            f"{job.topic}: {report['records']} dead letters moved to the table in {job.folder}"
            f" ({len(report['files'])} new files), {left} left in {at}"
        )
        return
    line = f"{job.topic}: {report['records']} records in {len(report['files'])} new files in {job.folder}"
    if report["dead_letters"]:
        line += f", {report['dead_letters']} dead letters in {report['dead_letters_at']}"
    print(f"{line}, lag {report['lag_records']}")
