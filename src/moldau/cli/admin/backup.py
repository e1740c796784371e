"""``moldau storage restore`` and ``moldau storage backup``."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.backup.cut import CUTS_FOLDER, BrokenCutError, ClusterCut, parse_cut_key
from moldau.backup.restore.folders import NodeFolder
from moldau.backup.restore.restoring import RestoreReport, Restoring, examine
from moldau.backup.stored_cuts import StoredCuts
from moldau.cli.app import new_app
from moldau.cli.errors import CommandError, one_line
from moldau.cli.options import JsonOption, key_values, timestamp_ms
from moldau.cli.output import print_json, print_table, time_text
from moldau.cli.serving.serve import read_config
from moldau.cluster.folders.formatter import new_directory_id
from moldau.cluster.folders.meta_properties import FormatError
from moldau.config.broker import BrokerConfig
from moldau.config.definition import ConfigError
from moldau.metrics import Meters
from moldau.objects.factory import open_storage
from moldau.objects.storage import ObjectStorage, StorageError
from moldau.quorum.core.voters import ReplicaKey, Voter
from moldau.records.control import VoterEndpoint
from moldau.runtime import KafkaError, Machine
from moldau.server.metadata.membership import controller_endpoints
from moldau.server.subsystems.diskless.settings import runtime_settings

backup_app = new_app(
    help="""See what is saved of a cluster.

    \b
    Example:
      moldau storage backup status --config server.properties
    """,
    no_args_is_help=True,
)
_SHOWN_TOPICS = 10


def restore_command(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The properties file of the new node.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL", help="The object store; by default diskless.storage.url of the file."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="The newest state saved until then (ISO 8601 or ms)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would come back, and write nothing.")
    ] = False,
    as_json: JsonOption = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one property.")
    ] = None,
) -> None:
    """Make the folder of a new node from the state of a cluster that is saved in its object store.

    The node becomes the only controller, and has every partition. All nodes of the old cluster must be
    stopped before. The restored node uses the same store.

    \b
    Example:
      moldau storage restore --config server.properties --dry-run
    """
    properties = key_values(overrides, "--set")
    if source is not None:
        properties = {"diskless.storage.url": source, **properties}
    try:
        broker = read_config(config, properties)
    except ConfigError as error:
        raise CommandError(one_line(error)) from error
    until_ms = None if until is None else timestamp_ms(until, "--until")
    report = restored(broker, until_ms, dry_run=dry_run)
    if as_json:
        print_json(_as_json(report, dry_run))
        return
    _print(report, broker, dry_run)


def restored(config: BrokerConfig, until_ms: int | None = None, *, dry_run: bool = False) -> RestoreReport:
    """Restore the newest state into the log folder of a configuration.

    Raises :class:`CommandError`. The folder is then not a node's folder.
    """
    machine = Machine.real()

    async def run() -> RestoreReport:
        storage = open_storage(runtime_settings(config).storage, machine, Meters())
        try:
            found = await StoredCuts(storage).newest(until_ms=until_ms)
            if found is None:
                when = "" if until_ms is None else f" until {time_text(until_ms)}"
                raise CommandError(
                    f"no state of a cluster is saved in {config.text('diskless.storage.url')}{when}: there is"
                    f" no object below {CUTS_FOLDER}"
                )
            if dry_run:
                return await examine(storage, found, until_ms)
            folder = _folder(machine, config, found.cut)
            return await Restoring(machine, storage, found, folder, until_ms).run()
        finally:
            await storage.close()

    try:
        return asyncio.run(run())
    except (FormatError, StorageError, KafkaError, ValueError) as error:
        raise CommandError(str(error)) from error


def _folder(machine: Machine, config: BrokerConfig, cut: ClusterCut) -> NodeFolder:
    voter, standalone = _only_voter(config)
    return NodeFolder(
        path=config.metadata_log_dir,
        cluster_id=cut.cluster_id,
        node_id=config.node_id,
        directory_id=new_directory_id(machine.entropy),
        static_voter=voter,
        standalone=standalone,
    )


def _only_voter(config: BrokerConfig) -> tuple[Voter | None, VoterEndpoint | None]:
    """The node as the only voter: a static one, or one that the metadata log names."""
    if not (config.is_controller and config.is_broker):
        raise CommandError(
            "a restored node is broker and controller: set process.roles=broker,controller; other nodes are"
            " added to it afterwards"
        )
    if not config.quorum_voters:
        return None, controller_endpoints(config)[0]
    if [voter.node_id for voter in config.quorum_voters] != [config.node_id]:
        raise CommandError(
            "controller.quorum.voters must name this node only: a restored node is the only controller;"
            " without the key, others can be added with `moldau quorum add`"
        )
    voter = config.quorum_voters[0]
    return Voter(ReplicaKey(voter.node_id), voter.host, voter.port), None


def _print(report: RestoreReport, config: BrokerConfig, dry_run: bool) -> None:
    newer, cut = report.newer, report.cut
    print(f"cluster {cut.cluster_id}, saved at {time_text(cut.created_ms)}")
    print(f"topics: {report.topics}, of which diskless: {report.diskless_topics}")
    if report.classic_topics:
        shown = ", ".join(report.classic_topics[:_SHOWN_TOPICS])
        more = len(report.classic_topics) - _SHOWN_TOPICS
        print(
            f"without their local records, because these were on the disks of brokers: {shown}"
            + (f" and {more} more" if more > 0 else "")
        )
    print(f"newer objects: {newer.objects}")
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
    for reason in (*report.missing, *(f"{key} is damaged" for key in newer.damaged)):
        print(f"missing: {reason}")
    if not dry_run:
        print(f"restored to {config.metadata_log_dir}")


def _as_json(report: RestoreReport, dry_run: bool) -> dict[str, Any]:
    newer = report.newer
    return {
        "cluster_id": report.cut.cluster_id,
        "saved_ms": report.cut.created_ms,
        "topics": report.topics,
        "diskless_topics": report.diskless_topics,
        "topics_without_local_records": list(report.classic_topics),
        "missing": report.missing,
        "newer_objects": newer.objects,
        "recommitted_batches": None if dry_run else newer.batches,
        "recommitted_records": None if dry_run else newer.records,
        "repeated_batches": None if dry_run else newer.repeated_batches,
        "aborted_transactions": report.aborted_transactions,
        "refused_batches": None if dry_run else newer.refused_batches,
        "transactional_batches": newer.transactional_batches,
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
    """Show the saved states in the object store: their times, and the sizes of the newest one's logs.

    \b
    Example:
      moldau storage backup status --config server.properties
    """
    try:
        broker = read_config(config, key_values(overrides, "--set"))
        cuts, newest = asyncio.run(_read_status(broker))
    except (ConfigError, StorageError, BrokenCutError, ValueError) as error:
        raise CommandError(one_line(error)) from error
    times = [name.created_ms for name in map(parse_cut_key, cuts) if name is not None]
    if as_json:
        print_json({"saved_ms": times, "logs": [] if newest is None else _log_rows(newest)})
        return
    if newest is None:
        print("no state is saved")
        return
    saved = time_text(newest.created_ms)
    print(f"cluster {newest.cluster_id}: {len(times)} saved states, the newest of {saved}")
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


async def _read_status(config: BrokerConfig) -> tuple[list[str], ClusterCut | None]:
    """The keys of all cuts, and the newest cut. Raises ``StorageError`` and ``BrokenCutError``."""
    storage: ObjectStorage = open_storage(runtime_settings(config).storage, Machine.real(), Meters())
    try:
        stored = StoredCuts(storage)
        keys = sorted(info.key for info in await stored.listed())
        found = await stored.newest()
        return keys, None if found is None else found.cut
    finally:
        await storage.close()
