"""``moldau storage restore`` and ``moldau storage backup``."""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.backup.cut_format import CUTS_FOLDER, ClusterCut, CutName, parse_cut_key
from moldau.backup.restore.folders import NewCluster
from moldau.backup.restore.living_nodes import living_brokers
from moldau.backup.restore.restoring import RestoreReport, Restoring, examine
from moldau.backup.restore.saved_state import metadata_of
from moldau.backup.stored_cuts import FoundCut, StoredCuts
from moldau.cli.app import new_app
from moldau.cli.errors import CommandError, one_line
from moldau.cli.options import JsonOption, key_values, timestamp_ms
from moldau.cli.output import print_json, print_table, time_text
from moldau.cli.serving.serve import read_config
from moldau.cli.storage.restored_nodes import (
    STORE,
    check_nodes,
    naming_store,
    new_cluster,
    tier_problem,
    with_store,
)
from moldau.cluster.folders.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.coordinators.diskless.store import store
from moldau.metrics import Meters
from moldau.objects.factory import open_storage
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.runtime import KafkaError, Machine
from moldau.server.subsystems.diskless.settings import manager_settings
from moldau.server.subsystems.tiered import settings as tiered_settings
from moldau.tiered.storage.storage_manager import HostedStorageManager, RemoteStorageError

backup_app = new_app(
    help="""Show the saved states of a cluster.

    \b
    Example:
      moldau storage backup status --config server.properties
    """,
    no_args_is_help=True,
)
_SHOWN_TOPICS = 10
IntoOption = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="DIR",
        help="Write to DIR/node-ID/0 and so on, not to log.dirs. Then copy these folders to other machines.",
    ),
]


def restore_command(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config", "-c", metavar="FILE", help="The properties file of a new node; may be repeated."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL", help="The object store; by default diskless.storage.url of the files."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="The newest state before this time (ISO 8601 or ms)."),
    ] = None,
    into: IntoOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which data would be restored, and write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Restore even if brokers of the old cluster respond.")
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Do not wait for old nodes. Use it only if all of them are stopped."),
    ] = False,
    as_json: JsonOption = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one property.")
    ] = None,
) -> None:
    """Make the folders of new nodes from the state of a cluster that is saved in its object store.

    All controllers of the new cluster are restored together. The replicas are placed on the given brokers;
    other brokers may be added later. All nodes of the old cluster must be stopped before the restore. The
    restored nodes use the same store.

    \b
    Example:
      moldau storage restore --config server.properties --dry-run
      moldau storage restore -c controller-1.properties -c broker-2.properties -c broker-3.properties
    """
    nodes, notes = _read_nodes(config, key_values(overrides, "--set"), source)
    until_ms = None if until is None else timestamp_ms(until, "--until")
    wanted = RestoreRequest(nodes, until_ms, into, dry_run=dry_run, force=force, waits=not no_wait)
    report = restored(wanted)
    if as_json:
        print_json(_as_json(report, dry_run))
    else:
        _print(report, dry_run)
    for note in notes:
        print(note, file=sys.stderr)
    if _missing(report) or report.obstacles:
        raise typer.Exit(1)


def _read_nodes(
    paths: Sequence[Path], overrides: Mapping[str, str], source: str | None
) -> tuple[list[BrokerConfig], list[str]]:
    """The configurations of the nodes, with the store that ``--from`` names. Also returns a line for each
    file that names another store. Raises :class:`CommandError`."""
    try:
        nodes = [read_config(path, overrides) for path in paths]
        if source is None or STORE in overrides:
            return nodes, []
        notes = [
            f"{path} names {node.text(STORE)}: start its node with {STORE}={source}"
            for path, node in zip(paths, nodes, strict=True)
            if node.optional_text(STORE) not in (None, source)
        ]
        return [with_store(node, source) for node in nodes], notes
    except ConfigError as error:
        raise CommandError(one_line(error)) from error


@contextmanager
def _without_expected_warnings() -> Iterator[None]:
    """Do not warn that the databases of the coordinators are missing: the folders of a restore are new."""
    logger = logging.getLogger(store.__name__)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The requested restore: the configurations of the new nodes, and options."""

    nodes: Sequence[BrokerConfig]
    until_ms: int | None = None
    into: Path | None = None
    dry_run: bool = False
    force: bool = False
    waits: bool = False
    """Whether nodes of the old cluster may still run. The restore then waits until they cannot write."""

    @property
    def storing(self) -> BrokerConfig:
        """The configuration that contains the object store's name."""
        return next(config for config in self.nodes if config.is_broker)


def restored(wanted: RestoreRequest) -> RestoreReport:
    """Restore the newest state into the log folders of the nodes.

    Raises :class:`CommandError`. In this case the folders do not belong to nodes yet.
    """
    machine = Machine.real()
    check_nodes(wanted.nodes)

    async def run() -> RestoreReport:
        storage = open_storage(manager_settings(wanted.storing).storage, machine, Meters())
        try:
            with naming_store(wanted.storing):
                found = await StoredCuts(storage).newest(until_ms=wanted.until_ms)
            if found is None:
                raise CommandError(_nothing_found(wanted))
            cluster = new_cluster(wanted.nodes, found.cut.cluster_id, machine, wanted.into)
            of_tier = tier_problem(wanted.nodes, found.cut)
            if wanted.dry_run:
                with tempfile.TemporaryDirectory() as scratch:
                    report = await examine(
                        machine,
                        storage,
                        found,
                        f"{scratch}/node",
                        wanted.until_ms,
                        has_tier=tiered_settings.is_enabled(wanted.storing),
                    )
                living = [] if report.missing else await _living(storage, found.cut, machine)
                report.obstacles += [f"{each} still runs" for each in living]
                report.obstacles += _folder_problems(cluster, machine)
                report.obstacles += [] if of_tier is None else [of_tier]
                return report
            if of_tier is not None:
                raise CommandError(of_tier)
            cluster.check(machine)
            if not wanted.force and (living := await _living(storage, found.cut, machine)):
                raise CommandError(
                    f"{living[0]} still runs, and a restore would end this cluster: stop all of its nodes, or"
                    " use --force"
                )
            tier = _tier(wanted.storing, found.cut.cluster_id, machine)
            try:
                restoring = Restoring(
                    machine, storage, found, cluster, wanted.until_ms, tier, waits=wanted.waits
                )
                restoring.on_wait = _print_wait
                return await restoring.run()
            finally:
                if tier is not None:
                    await tier.close()
        finally:
            await storage.close()

    try:
        with _without_expected_warnings():
            return asyncio.run(run())
    except (FormatError, StorageError, RemoteStorageError, KafkaError, OSError, ValueError) as error:
        raise CommandError(one_line(error)) from error


def restored_at_start(nodes: Sequence[BrokerConfig]) -> RestoreReport:
    """Restore the newest state into the log folders of nodes that start afterwards. Missing data are printed
    on stderr. Raises the same errors as :func:`restored`."""
    report = restored(RestoreRequest(nodes))
    for reason in _missing(report):
        print(f"missing: {reason}", file=sys.stderr, flush=True)
    return report


def _print_wait(left_s: float) -> None:
    print(
        f"waiting {left_s:.0f} s for the last records of old nodes that may still run (--no-wait: all of them"
        " are stopped)",
        file=sys.stderr,
        flush=True,
    )


def _tier(config: BrokerConfig, cluster_id: str, machine: Machine) -> HostedStorageManager | None:
    """The remote tier of classic topics, if it is enabled. Raises ``ConfigError``."""
    if not tiered_settings.is_enabled(config):
        return None
    return tiered_settings.storage_manager(config, cluster_id, machine, Meters())


async def _living(storage: ObjectStorage, cut: ClusterCut, machine: Machine) -> list[str]:
    """The brokers of the saved cluster that are still running."""
    return await living_brokers(await metadata_of(storage, cut), cut.cluster_id, machine.entropy)


def _nothing_found(wanted: RestoreRequest) -> str:
    when = "" if wanted.until_ms is None else f" until {time_text(wanted.until_ms)}"
    return (
        f"no state of a cluster is saved in {wanted.storing.text('diskless.storage.url')}{when}: there is"
        f" no readable object below {CUTS_FOLDER}"
    )


def _folder_problems(cluster: NewCluster, machine: Machine) -> list[str]:
    try:
        cluster.check(machine)
    except FormatError as error:
        return [str(error)]
    return []


def _missing(report: RestoreReport) -> list[str]:
    return [*report.missing, *(f"{key} is damaged" for key in report.newer.damaged)]


def _print(report: RestoreReport, dry_run: bool) -> None:
    newer, cut = report.newer, report.cut
    print(f"cluster {cut.cluster_id}, saved at {time_text(cut.created_ms)}")
    for key in report.damaged_cuts:
        print(f"damaged, so an older state is used: {key}")
    if not report.missing:
        print(f"topics: {report.topics}, of which diskless: {report.diskless_topics}")
    if report.classic_topics:
        shown = ", ".join(report.classic_topics[:_SHOWN_TOPICS])
        more = len(report.classic_topics) - _SHOWN_TOPICS
        print(
            f"without their local records, because these were on the disks of brokers: {shown}"
            + (f" and {more} more" if more > 0 else "")
        )
    upto = "" if newer.newest_ms is None else f", the newest of {time_text(newer.newest_ms)}"
    print(f"objects that may be newer: {newer.objects}{upto}")
    if not dry_run:
        print(
            f"records that were acknowledged after the state was saved: {newer.records} in"
            f" {newer.batches} batches; {newer.repeated_batches} batches were there already"
        )
    if newer.refused_batches:
        print(f"refused, because a batch before them is missing: {newer.refused_batches} batches")
    if report.aborted_transactions:
        print(f"aborted, because they were open: {report.aborted_transactions} transactions")
    if newer.transactional_batches:
        print(f"left out: {newer.transactional_batches} batches of transactions")
    for topic_id, count in newer.unknown_topics.items():
        print(
            f"left out: {count} batches of topic id {topic_id}, which was created after the state was saved"
        )
    for reason in _missing(report):
        print(f"missing: {reason}")
    for obstacle in report.obstacles:
        print(f"a restore would be refused: {obstacle}")
    for node_id, path in report.folders.items():
        print(f"restored node {node_id} to {path}")


def _as_json(report: RestoreReport, dry_run: bool) -> dict[str, Any]:
    newer = report.newer
    return {
        "cluster_id": report.cut.cluster_id,
        "saved_ms": report.cut.created_ms,
        "damaged_states": list(report.damaged_cuts),
        "topics": report.topics,
        "diskless_topics": report.diskless_topics,
        "topics_without_local_records": list(report.classic_topics),
        "missing": report.missing,
        "obstacles": report.obstacles,
        "folders": {str(node_id): path for node_id, path in report.folders.items()},
        "newer_objects": newer.objects,
        "newest_object_ms": newer.newest_ms,
        "recommitted_batches": None if dry_run else newer.batches,
        "recommitted_records": None if dry_run else newer.records,
        "repeated_batches": None if dry_run else newer.repeated_batches,
        "aborted_transactions": report.aborted_transactions,
        "refused_batches": None if dry_run else newer.refused_batches,
        "transactional_batches": None if dry_run else newer.transactional_batches,
        "unknown_topics": {str(topic_id): count for topic_id, count in newer.unknown_topics.items()},
        "damaged_objects": newer.damaged,
    }


@backup_app.command("status")
def status(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="A node's properties file.")],
    as_json: JsonOption = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one property.")
    ] = None,
) -> None:
    """Show the times of the saved states in the object store, and the sizes of the logs in the newest one.

    \b
    Example:
      moldau storage backup status --config server.properties
    """
    try:
        broker = read_config(config, key_values(overrides, "--set"))
        names, found = asyncio.run(_read_status(broker))
    except (ConfigError, StorageError, OSError, ValueError) as error:
        raise CommandError(one_line(error)) from error
    if as_json:
        logs = [] if found is None else _log_rows(found.cut)
        damaged = [] if found is None else list(found.damaged)
        print_json({"saved_ms": [name.created_ms for name in names], "damaged": damaged, "logs": logs})
        return
    if found is None:
        print(
            f"no state is saved in {broker.text('diskless.storage.url')}"
            + (" that can be read" if names else "")
        )
        return
    newest = found.cut
    age_s = (Machine.real().clock.now_ms() - newest.created_ms) / 1000
    print(f"cluster {newest.cluster_id}, restored {newest.generation} times before")
    print(f"newest state: {time_text(newest.created_ms)}, {age_s:,.0f} s ago")
    print(f"oldest state: {time_text(names[0].created_ms)}, the first of {len(names)}")
    for key in found.damaged:
        print(f"damaged: {key}")
    rows = _log_rows(newest)
    print_table(("Log", "End offset", "Pieces", "Bytes"), [tuple(row.values()) for row in rows])


def _log_rows(cut: ClusterCut) -> list[dict[str, Any]]:
    return [
        {
            "log": f"{log.topic}-{log_id.partition}",
            "end_offset": log.end_offset,
            "pieces": len(log.pieces),
            "size_bytes": log.size_bytes,
        }
        for log_id, log in cut.logs.items()
    ]


async def _read_status(config: BrokerConfig) -> tuple[list[CutName], FoundCut | None]:
    """The names of all cuts in order, and the newest cut that can be read. Raises ``StorageError``."""
    storage: ObjectStorage = open_storage(manager_settings(config).storage, Machine.real(), Meters())
    try:
        stored = StoredCuts(storage)
        with naming_store(config):
            names = [parse_cut_key(info.key) for info in await stored.listed()]
            return sorted(name for name in names if name is not None), await stored.newest()
    finally:
        await storage.close()
