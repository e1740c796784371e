"""``moldau brokers``."""

from typing import Annotated

import typer

from moldau.cli.admin.log_dirs import BrokersArgument, move_replicas, show_log_dirs
from moldau.cli.admin.moving import DryRunOption, NoWaitOption, ThrottleOption, YesOption, make_moves
from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, confirm
from moldau.cli.output import print_json, print_table
from moldau.client.chunks import chunked_partitions
from moldau.client.cluster import Client, check, with_client
from moldau.client.quorum import ENDPOINT_BROKERS, describe_cluster
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest

app = new_app(no_args_is_help=True)


@app.command("decommission")
def decommission(
    broker_id: Annotated[int, typer.Argument(metavar="ID", help="The broker to empty.")],
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    throttle: ThrottleOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Move all replicas off a broker, so that it can be stopped permanently.

    \b
    Example:
      moldau brokers decommission 3 --dry-run
    """
    make_moves(
        bootstrap,
        timeout_s,
        None,
        leaving=[broker_id],
        dry_run=dry_run,
        wait=not no_wait,
        yes=yes,
        as_json=as_json,
        throttle=throttle,
    )


@app.command("unregister")
def unregister(
    broker_id: Annotated[int, typer.Argument(metavar="ID", help="The stopped broker.")],
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Remove a broker that was stopped permanently from the metadata of the cluster.

    The command is refused while the broker runs, and while partitions have replicas on the broker.

    \b
    Example:
      moldau brokers unregister 3
    """
    with_client(bootstrap, timeout_s, lambda client: _check_is_empty(client, broker_id))
    confirm(f"Unregister broker {broker_id}?", yes)

    async def work(client: Client) -> None:
        response = await client.ask(UnregisterBrokerRequest(broker_id=broker_id))
        check(response.error_code, response.error_message, f"broker {broker_id}")

    with_client(bootstrap, timeout_s, work)
    print(f"broker {broker_id} is unregistered")


async def _check_is_empty(client: Client, broker_id: int) -> None:
    """Raises :class:`CommandError` if the broker runs, or is needed for a partition or a chunk."""
    cluster = await describe_cluster(client, ENDPOINT_BROKERS)
    if any(row.broker_id == broker_id and not row.is_fenced for row in cluster.brokers):
        raise CommandError(f"broker {broker_id} is running: stop it first")
    partitions = await chunked_partitions(client, None)
    count = sum(broker_id in each.replicas for each in partitions)
    if count:
        raise CommandError(
            f"broker {broker_id} has replicas of {count} partitions: run"
            f" `moldau brokers decommission {broker_id}` first"
        )
    count = sum(broker_id in chunk.replica_nodes for each in partitions for chunk in each.chunks)
    if count:
        raise CommandError(
            f"broker {broker_id} has {count} inactive chunks: move them by `moldau chunks alter` first"
        )


@app.command("list")
def list_brokers(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the registered brokers, including fenced brokers.

    \b
    Example:
      moldau brokers list --json
    """
    answer = with_client(bootstrap, timeout_s, lambda client: describe_cluster(client, ENDPOINT_BROKERS))
    rows = sorted(answer.brokers, key=lambda row: row.broker_id)
    if as_json:
        brokers = [
            {
                "id": row.broker_id,
                "host": row.host,
                "port": row.port,
                "rack": row.rack,
                "fenced": row.is_fenced,
            }
            for row in rows
        ]
        print_json({"cluster_id": answer.cluster_id, "brokers": brokers})
        return
    print_table(
        ("Broker", "Address", "Rack", "State"),
        [
            (row.broker_id, f"{row.host}:{row.port}", row.rack, "fenced" if row.is_fenced else "active")
            for row in rows
        ],
    )


@app.command("log-dirs")
def log_dirs(
    brokers: BrokersArgument = None,
    replicas: Annotated[bool, typer.Option("--replicas", help="List the replicas, too.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the log directories of brokers, including offline directories.

    \b
    Example:
      moldau brokers log-dirs 2 --replicas
    """
    show_log_dirs(bootstrap, timeout_s, brokers or (), with_replicas=replicas, as_json=as_json)


@app.command("move-replicas")
def move(
    broker_id: Annotated[int, typer.Argument(metavar="ID", help="The broker.")],
    target: Annotated[str, typer.Option("--to", metavar="DIRECTORY", help="The new log directory.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="REPLICA", help="TOPIC or TOPIC-PARTITION; by default all replicas."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="DIRECTORY", help="Only replicas in this log directory."),
    ] = None,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Move replicas of a broker to another of its log directories.

    If a replica is already in the directory of --to, its move to another directory is cancelled.

    \b
    Example:
      moldau brokers move-replicas 2 --from /disk1 --to /disk2
    """
    move_replicas(
        bootstrap,
        timeout_s,
        broker_id,
        names or (),
        source=source,
        target=target,
        dry_run=dry_run,
        wait=not no_wait,
        yes=yes,
        as_json=as_json,
    )
