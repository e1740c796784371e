"""``moldau dev``."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.node_options import LevelOption, LogLevel, SetOption
from moldau.cli.options import key_values
from moldau.cli.serve_pipeline import prepared_pipeline

app = new_app()

PipelineOption = Annotated[
    bool,
    typer.Option(
        "--pipeline", help="Run the jobs of `moldau pipeline run` in a process beside it; needs Spark."
    ),
]
PipelineConfigOption = Annotated[
    Path | None,
    typer.Option("--pipeline-config", metavar="FILE", help="Which jobs; implies --pipeline."),
]


@app.command("dev")
def dev(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Folder to keep everything in; a temporary one by default."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port for clients; 0 takes a free one."
        ),
    ] = 9092,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    classic: Annotated[
        bool, typer.Option("--classic", help="Make classic topics by default, on the local disk.")
    ] = False,
    pipeline: PipelineOption = False,
    pipeline_config: PipelineConfigOption = None,
    overrides: SetOption = None,
    log_level: LevelOption = LogLevel.WARNING,
) -> None:
    """Run a ready-to-use node with no configuration file.

    Prints "ready HOST:PORT" on stdout when it accepts clients. Ctrl-C or SIGTERM stops it cleanly.

    \b
    Example:
      moldau dev --data ./data --set log.retention.ms=3600000
    """
    properties = key_values(overrides, "--set")
    if classic:
        properties = {"log.diskless.enable": "false", **properties}
    beside = None
    if pipeline or pipeline_config is not None:
        beside = prepared_pipeline(pipeline_config)
        if pipeline_config is None:  # its usual jobs consolidate
            properties = {"diskless.consolidation.enable": "false", **properties}
    # The node itself is imported late: signals are heeded, and mistakes told, before that.
    from moldau.cli import serve
    from moldau.server.settings import development_config

    def run(folder: str) -> None:
        serve.run_node(
            lambda: development_config(folder, port, properties, host=host, diskless=True),
            log_level,
            format_new=True,
            beside=beside,
        )

    if data is None:
        with tempfile.TemporaryDirectory(prefix="moldau-") as folder:
            run(folder)
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot use {data} as a data folder: {error.strerror}") from error
    run(str(data.resolve()))
