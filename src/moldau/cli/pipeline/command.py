"""``moldau pipeline``."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.pipeline.checks import orphans, verify
from moldau.cli.pipeline.consolidate import consolidate
from moldau.cli.pipeline.export import export, replay
from moldau.cli.pipeline.jobs import check_spark, run_jobs

app = new_app(no_args_is_help=True)

app.command("consolidate")(consolidate)
app.command("export")(export)
app.command("replay")(replay)
app.command("verify")(verify)
app.command("orphans")(orphans)


@app.command("run")
def run(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="The jobs, in TOML. By default the usual maintenance jobs run.",
        ),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            envvar="MOLDAU_BOOTSTRAP",
            help="A node of the cluster, if the file names none.",
        ),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
) -> None:
    """Run jobs at their intervals, in one process with one Spark session.

    Prints a JSON line when it is ready, and a JSON line for each round of a job. A failed round is repeated
    when the next round is due. Ctrl-C or SIGTERM stops it cleanly.

    \b
    Example:
      moldau pipeline run --config jobs.toml
    """
    check_spark()
    from moldau.pipeline.jobs import read_jobs, usual_jobs

    found = usual_jobs(bootstrap) if config is None else read_jobs(str(config), bootstrap)
    run_jobs(found, with_parent=with_parent)
