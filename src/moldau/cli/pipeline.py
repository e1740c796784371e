"""``moldau pipeline``."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption
from moldau.cli.output import print_json
from moldau.client.cluster import parse_bootstrap

app = new_app(help="Bulk jobs on Apache Spark.", no_args_is_help=True)

UNIT_RECORDS_MAX = 1_000_000


class Format(enum.StrEnum):
    """What a topic is exported as."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"


@app.callback()
def _root() -> None:
    """Keeps ``export`` a command of its own."""


@app.command("export")
def export(
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic to export.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A local folder; it is made if absent.")],
    once: Annotated[
        bool,
        typer.Option("--once", help="Export up to where the topic ends now, and end (the only way yet)."),
    ] = False,
    table_format: Annotated[
        Format, typer.Option("--format", help="Plain Parquet files, or an Iceberg table.")
    ] = Format.PARQUET,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Spark's master; every core of this machine by default."
        ),
    ] = None,
    unit_records: Annotated[
        int, typer.Option("--unit-records", metavar="N", min=1, help="At most so many offsets in a file.")
    ] = UNIT_RECORDS_MAX,
    allow_data_loss: Annotated[
        bool,
        typer.Option("--allow-data-loss", help="Go on behind records that were deleted before their export."),
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Bring a table up to where a topic ends: each committed record once, however often this is run.

    With --format iceberg the folder holds a catalog in SQLite and the table moldau.TOPIC.

    \b
    Example:
      moldau pipeline export --topic orders --to exports/orders --format parquet --once
    """
    if not once:
        raise CommandError("only --once is built so far: run it as often as you like")
    parse_bootstrap(bootstrap)
    # Neither Spark nor Arrow is imported by any other command.
    from moldau.pipeline.requirements import check_requirements

    check_requirements()
    from moldau.pipeline.export import ExportJob, run_export

    job = ExportJob(
        bootstrap=bootstrap,
        topic=topic,
        folder=str(to),
        table_format=table_format.value,
        unit_records_max=unit_records,
        may_lose=allow_data_loss,
        timeout_s=timeout_s,
    )
    written = run_export(job, master)
    records = sum(file.records for file in written)
    if as_json:
        print_json({"topic": topic, "records": records, "files": [file.path for file in written]})
    else:
        print(f"{topic}: {records} records in {len(written)} new files in {to}")
