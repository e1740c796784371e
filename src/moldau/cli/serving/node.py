"""``moldau node``."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.options import key_values
from moldau.cli.serving.node_options import LevelOption, LogLevel, SetOption

app = new_app()


@app.command("node")
def node(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", metavar="FILE", help="A server.properties file with Kafka's names."),
    ],
    overrides: SetOption = None,
    log_level: LevelOption = LogLevel.INFO,
    with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
) -> None:
    """Run a node with a configuration file.

    Its folders must be formatted before: see `moldau storage format`. Ctrl-C or SIGTERM stops it cleanly.

    \b
    Example:
      moldau node --config server.properties --set log.retention.hours=24
    """
    changes = key_values(overrides, "--set")
    from moldau.cli.serving import serve

    serve.run_node(lambda: serve.read_config(config, changes), log_level, stop_with_parent=with_parent)
