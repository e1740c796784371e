"""The log directories of brokers, as ``brokers log-dirs`` and ``brokers move-replicas`` show and use them."""

import asyncio
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import confirm
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import Client, with_client
from moldau.client.log_dirs import (
    BrokerDirectory,
    DirectoryReplica,
    begin_directory_moves,
    directories_of,
    until_directories_changed,
)
from moldau.client.quorum import ENDPOINT_BROKERS, describe_cluster
from moldau.runtime.errors import ErrorCode

_REFUSALS: Final = {
    ErrorCode.invalid_request: "replicas of diskless topics and of topics with snapshots cannot be moved",
}
"""Explains refusals, because the response has no field for a text."""

BrokersArgument: TypeAlias = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Ids of brokers; by default all active brokers.")
]


def show_log_dirs(
    bootstrap: str, timeout_s: float, broker_ids: Collection[int], *, with_replicas: bool, as_json: bool
) -> None:
    """Print the log directories of brokers. If no id is given, print the log directories of all active
    brokers."""

    async def work(client: Client) -> list[BrokerDirectory]:
        wanted = broker_ids
        if not wanted:
            cluster = await describe_cluster(client, ENDPOINT_BROKERS)
            wanted = [row.broker_id for row in cluster.brokers if not row.is_fenced]
        answers = await asyncio.gather(*(directories_of(client, each) for each in sorted(wanted)))
        return [directory for answer in answers for directory in answer]

    found = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json([_described(directory) for directory in found])
        return
    print_table(
        ("Broker", "Log directory", "State", "Replicas", "Bytes", "Free bytes", "Total bytes"),
        [
            (
                each.broker_id,
                each.path,
                "online" if each.is_online else "offline",
                len(each.replicas) if each.is_online else None,
                each.size_bytes if each.is_online else None,
                each.usable_bytes,
                each.total_bytes,
            )
            for each in found
        ],
    )
    if with_replicas:
        print()
        print_table(
            ("Broker", "Topic", "Partition", "Bytes", "Lag", "State", "Log directory"),
            [
                (
                    directory.broker_id,
                    row.topic,
                    row.partition,
                    row.size_bytes,
                    row.lag,
                    "copying" if row.is_copy else "current",
                    directory.path,
                )
                for directory in found
                for row in directory.replicas
            ],
        )


def _described(directory: BrokerDirectory) -> dict[str, Any]:
    return {
        "broker": directory.broker_id,
        "path": directory.path,
        "online": directory.is_online,
        "usable_bytes": directory.usable_bytes,
        "total_bytes": directory.total_bytes,
        "replicas": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "bytes": row.size_bytes,
                "lag": row.lag,
                "copying": row.is_copy,
            }
            for row in directory.replicas
        ],
    }


def move_replicas(
    bootstrap: str,
    timeout_s: float,
    broker_id: int,
    names: Collection[str],
    *,
    source: str | None,
    target: str,
    dry_run: bool,
    wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the replicas that will be moved, ask for confirmation, start the moves and wait until they end."""

    async def plan(client: Client) -> list[DirectoryReplica]:
        return _planned(await directories_of(client, broker_id), names, source, target)

    replicas = with_client(bootstrap, timeout_s, plan)
    if as_json:
        print_json(
            [
                {"topic": row.topic, "partition": row.partition, "from": row.path, "bytes": row.size_bytes}
                for row in replicas
            ]
        )
    elif not replicas:
        print("nothing to move")
    else:
        print_table(
            ("Topic", "Partition", "From", "Bytes"),
            [(row.topic, row.partition, row.path, row.size_bytes) for row in replicas],
        )
    if dry_run or not replicas:
        return
    confirm(f"Move {len(replicas)} replicas of broker {broker_id} to {target}?", yes)
    with_client(bootstrap, timeout_s, lambda client: _carry_out(client, broker_id, replicas, target, wait))


def _planned(
    directories: Sequence[BrokerDirectory], names: Collection[str], source: str | None, target: str
) -> list[DirectoryReplica]:
    """Return the replicas that must be moved, which are in directories other than ``target``. Replicas in
    ``target`` are included if they are being copied to another directory."""
    paths = [each.path for each in directories]
    for path in (target, source):
        if path is not None and path not in paths:
            raise CommandError(f"{path} is not a log directory of the broker; it has {', '.join(paths)}")
    rows = [row for each in directories for row in each.replicas]
    known = {name for row in rows for name in (row.topic, row.name)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CommandError(f"the broker has no replica of {unknown[0]}")
    copies = {row.name for row in rows if row.is_copy and row.path != target}
    return [
        row
        for row in rows
        if not row.is_copy
        and (not names or row.topic in names or row.name in names)
        and source in (None, row.path)
        and (row.path != target or row.name in copies)
    ]


async def _carry_out(
    client: Client, broker_id: int, replicas: Sequence[DirectoryReplica], target: str, wait: bool
) -> None:
    refused = await begin_directory_moves(client, broker_id, replicas, target)
    for name, code in sorted(refused.items()):
        print(f"{name}: {_REFUSALS.get(code, code.name.upper())}", file=sys.stderr)
    accepted = [row for row in replicas if row.name not in refused]
    if wait and accepted:
        rows = await until_directories_changed(client, broker_id, accepted, _print_progress)
        for row in rows:
            if row.path != target:
                print(f"{row.name}: not moved; the broker's log names the reason", file=sys.stderr)
        refused.update({row.name: ErrorCode.kafka_storage_error for row in rows if row.path != target})
    if refused:
        raise CommandError(f"{len(refused)} of {len(replicas)} replicas were not moved")


def _print_progress(left: int) -> None:
    print(f"{left} copies in progress" if left else "all copies are done", file=sys.stderr, flush=True)
