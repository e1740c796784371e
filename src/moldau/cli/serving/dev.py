"""``moldau dev``."""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import key_values
from moldau.cli.serving.node_options import LevelOption, LogLevel, SetOption
from moldau.cli.serving.pipeline_process import prepared_pipeline

if TYPE_CHECKING:
    from moldau.cli.serving.serve import Beside

app = new_app()

PipelineOption = Annotated[
    bool,
    typer.Option(
        "--pipeline",
        help="Also run the jobs of `moldau pipeline run`, in a separate process; requires Spark.",
    ),
]
BrokersOption = Annotated[
    int | None,
    typer.Option(
        "--brokers",
        metavar="N",
        min=1,
        max=100,
        help="Run a cluster with N brokers, each in a process of its own, at PORT and the ports after it.",
    ),
]
ControllersOption = Annotated[
    int | None,
    typer.Option(
        "--controllers",
        metavar="N",
        min=1,
        max=9,
        help="Run a cluster with N controllers, each in a process of its own.",
    ),
]
RacksOption = Annotated[
    str | None,
    typer.Option(
        "--racks", metavar="NAMES", help="Racks for the brokers, one after another, for instance a,b,c."
    ),
]
PipelineConfigOption = Annotated[
    Path | None,
    typer.Option("--pipeline-config", metavar="FILE", help="File with the jobs to run; implies --pipeline."),
]

RestoreOption = Annotated[
    str | None,
    typer.Option(
        "--restore-from",
        metavar="URL",
        help="Restore the cluster that is saved in this object store, and continue with this cluster.",
    ),
]


@app.command("dev")
def dev(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Folder for all data; by default a temporary folder."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port for clients; 0 means a free port."
        ),
    ] = 9092,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    classic: Annotated[
        bool, typer.Option("--classic", help="Create classic topics by default, on the local disk.")
    ] = False,
    brokers: BrokersOption = None,
    controllers: ControllersOption = None,
    racks: RacksOption = None,
    pipeline: PipelineOption = False,
    pipeline_config: PipelineConfigOption = None,
    overrides: SetOption = None,
    restore_from: RestoreOption = None,
    log_level: LevelOption = LogLevel.WARNING,
) -> None:
    """Run a ready-to-use node with no configuration file.

    Prints "ready HOST:PORT" on stdout when it accepts clients. For a cluster, this line has the addresses of
    all brokers, separated by commas. Ctrl-C or SIGTERM stops it cleanly.

    \b
    Example:
      moldau dev --data ./data --set log.retention.ms=3600000
      moldau dev --brokers 3 --controllers 3 --racks a,b,c
    """
    properties = key_values(overrides, "--set")
    if brokers is not None or controllers is not None or racks is not None:
        if pipeline or pipeline_config is not None:
            raise CommandError("--pipeline is for a single node: it cannot be used with --brokers yet")
        properties = _with_store(properties, restore_from, data)
        size = (1 if brokers is None else brokers, 1 if controllers is None else controllers)
        cluster = _cluster(size, racks, (host, port), (properties, restore_from is not None), log_level)
        _with_folder(data, cluster)
        return
    properties = _with_store(properties, restore_from, data)
    if classic:
        properties = {"log.diskless.enable": "false", **properties}
    beside = None
    if pipeline or pipeline_config is not None:
        beside = prepared_pipeline(pipeline_config)
        if pipeline_config is None:  # The default jobs of the pipeline include consolidation.
            properties = {"diskless.consolidation.enable": "false", **properties}
    _with_folder(data, _single_node((host, port), properties, log_level, beside, restore_from is not None))


def _with_store(properties: dict[str, str], url: str | None, data: Path | None) -> dict[str, str]:
    """The properties with the object store of a restore, if there is one."""
    if url is None:
        return properties
    if data is None:
        raise CommandError("--restore-from needs --data, the folder of the new node or cluster")
    return {"diskless.storage.url": url, "rsm.config.url": url, **properties}


def _single_node(
    address: tuple[str, int],
    properties: Mapping[str, str],
    log_level: str,
    beside: "Beside | None",
    is_restored: bool,
) -> Callable[[Path], None]:
    # The module of the node is imported here, and not at the top of the file. Therefore signals are handled,
    # and errors can be printed, before this slow import.
    from moldau.cli.serving import serve
    from moldau.cli.serving.cluster_folder import refuse_cluster
    from moldau.server.settings import development_config

    host, port = address

    def run(folder: Path) -> None:
        refuse_cluster(folder)
        config = partial(development_config, str(folder), port, properties, host=host, diskless=True)
        if is_restored:
            from moldau.cli.storage.backup import restored_at_start

            restored_at_start([config()])
        serve.run_node(
            config,
            log_level,
            format_new=True,
            beside=beside,
        )

    return run


def _cluster(
    size: tuple[int, int],
    racks: str | None,
    address: tuple[str, int],
    configured: tuple[Mapping[str, str], bool],
    log_level: str,
) -> Callable[[Path], None]:
    """``size`` contains the numbers of brokers and controllers. ``configured`` contains the properties, and
    whether the cluster is restored from its object store."""
    from moldau.cli.serving.cluster import ClusterOptions, run_cluster

    options = ClusterOptions(
        brokers=size[0],
        controllers=size[1],
        racks=[] if racks is None else racks_of(racks),
        host=address[0],
        port=address[1],
        properties=configured[0],
        is_restored=configured[1],
        log_level=log_level,
    )
    return lambda folder: run_cluster(folder, options)


def racks_of(text: str) -> list[str]:
    """The names in ``a,b,c``. Raises a usage error when a name is empty."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(f"{text!r} has an empty name", param_hint="--racks")
    return names


def _with_folder(data: Path | None, run: Callable[[Path], None]) -> None:
    """Run with the data folder. If the folder is missing, it is created. A temporary folder is removed
    afterwards."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="moldau-") as folder:
            run(Path(folder))
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot use {data} as a data folder: {error.strerror}") from error
    run(data.resolve())
