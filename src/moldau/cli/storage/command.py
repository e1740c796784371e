"""``moldau storage``: make folders ready for a node."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.storage.backup import backup_app, restore_command
from moldau.cli.storage.storage_options import (
    FeatureOption,
    FormatOptions,
    InitialControllersOption,
    NoInitialControllersOption,
    StandaloneOption,
    with_options,
)
from moldau.cluster.folders.formatter import FormatRequest, format_storage, new_cluster_id
from moldau.cluster.folders.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.config.properties import parse_overrides, parse_properties
from moldau.runtime.clock import SystemClock
from moldau.runtime.entropy import SystemEntropy
from moldau.runtime.files.local_disk import LocalDisk

app = new_app(no_args_is_help=True)
app.command("restore")(restore_command)
app.add_typer(backup_app, name="backup")


@app.command("random-uuid")
def random_uuid() -> None:
    """Print a new cluster id.

    \b
    Example:
      ID=$(moldau storage random-uuid)
    """
    print(new_cluster_id(SystemEntropy()))


@app.command("format")
def format_command(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The node's properties file.")
    ],
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id", "-t", metavar="ID", help="The id of the cluster; random-uuid prints a new one."
        ),
    ],
    standalone: StandaloneOption = False,
    initial_controllers: InitialControllersOption = None,
    no_initial_controllers: NoInitialControllersOption = False,
    features: FeatureOption = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", "-g", help="Skip folders that are already formatted.")
    ] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one property.")
    ] = None,
) -> None:
    """Format the folders of a node, once, before its first start.

    Without controller.quorum.voters the voters are stored in the metadata log. A controller then needs one of
    the options --standalone, --initial-controllers and --no-initial-controllers, which determine the first
    voters.

    \b
    Example:
      moldau storage format --config server.properties --cluster-id "$ID" --standalone
    """
    try:
        text = config.read_text()
    except OSError as error:
        raise CommandError(f"cannot read {config}: {error.strerror}") from error
    try:
        broker = BrokerConfig.from_properties(parse_properties(text), parse_overrides(overrides or ()))
        request = FormatRequest(
            cluster_id=cluster_id,
            node_id=broker.node_id,
            log_dirs=broker.log_dirs,
            metadata_dir=broker.metadata_log_dir,
            ignore_formatted=ignore_formatted,
        )
        chosen = FormatOptions(standalone, initial_controllers, no_initial_controllers, tuple(features or ()))
        request = with_options(request, broker, chosen)
        folders = format_storage(LocalDisk(), SystemEntropy(), request, SystemClock().now_ms())
    except (ConfigError, FormatError) as error:
        raise CommandError(str(error)) from error
    for folder in folders:
        print(f"formatted {folder}")
    if not folders:
        print("all of the log folders are already formatted")
