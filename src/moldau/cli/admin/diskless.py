"""``moldau diskless``."""

from typing import Annotated, Any

import typer

from moldau.cli.admin.diskless_client import (
    CoordinatorState,
    DisklessFile,
    DisklessTopic,
    describe_coordinators,
    describe_files,
    describe_gateways,
    describe_topics,
)
from moldau.cli.app import new_app
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption
from moldau.cli.output import print_json, print_table, time_text
from moldau.client.cluster import with_client
from moldau.cluster.folders.meta_properties import encode_uuid as topic_id_text
from moldau.cluster.racks.gateways import Gateways

app = new_app(no_args_is_help=True)


@app.command("topics")
def topics(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Names of topics; all by default.")
    ] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show diskless topics: their offsets, and their objects in the object store.

    A topic's objects are all objects with live records of the topic; most of them contain records of other
    topics, too. The unused bytes of an object are its footer and its deleted records. These bytes are freed
    with the last record of the object.

    \b
    Example:
      moldau diskless topics orders
    """
    found = with_client(bootstrap, timeout_s, lambda client: describe_topics(client, names or []))
    if as_json:
        print_json([_topic_fields(topic) for topic in found])
        return
    print_table(
        ("Topic", "Partition", "Coordinator", "Log start", "WAL start", "Next", "Batches", "Bytes"),
        [
            (
                topic.name,
                index,
                coordinator,
                part.log_start_offset,
                part.wal_start_offset,
                part.high_watermark,
                part.batches,
                part.size_bytes,
            )
            for topic in found
            for index, (coordinator, part) in sorted(topic.partitions.items())
        ],
    )
    print()
    print_table(
        ("Topic", "Bytes", "Objects", "Bytes of objects", "Unused in them"),
        [
            (topic.name, _size_bytes(topic), topic.objects, topic.objects_bytes, topic.deleted_bytes)
            for topic in found
        ],
    )


def _size_bytes(topic: DisklessTopic) -> int:
    return sum(part.size_bytes for _, part in topic.partitions.values())


def _topic_fields(topic: DisklessTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "size_bytes": _size_bytes(topic),
        "objects": topic.objects,
        "objects_bytes": topic.objects_bytes,
        "unused_bytes": topic.deleted_bytes,
        "partitions": [
            {
                "partition": index,
                "coordinator": coordinator,
                "log_start": part.log_start_offset,
                "wal_start": part.wal_start_offset,
                "next": part.high_watermark,
                "batches": part.batches,
                "size_bytes": part.size_bytes,
                "objects_bytes": part.objects_bytes,
                "unused_bytes": part.deleted_bytes,
            }
            for index, (coordinator, part) in sorted(topic.partitions.items())
        ],
    }


@app.command("files")
def files(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the objects that the coordinators know, with the used part of each.

    The state of an object is "live" while a batch in the object is live. The next state is "handing-over":
    the owner of the object hands it over to the other coordinators that have batches in the object. The last
    state is "free": the object will be deleted after the grace period.

    \b
    Example:
      moldau diskless files --json
    """
    found = with_client(bootstrap, timeout_s, describe_files)
    if as_json:
        print_json([_file_fields(file) for file in found])
        return
    print_table(
        ("Object", "Bytes", "Used", "Batches", "Owner", "State", "Begun"),
        [
            (
                file.object_key,
                file.size_bytes,
                file.used_bytes,
                file.live_batches,
                file.owner_id,
                file.state,
                time_text(file.created_ms),
            )
            for file in found
        ],
    )


def _file_fields(file: DisklessFile) -> dict[str, Any]:
    return {
        "object_key": file.object_key,
        "size_bytes": file.size_bytes,
        "used_bytes": file.used_bytes,
        "live_batches": file.live_batches,
        "owner": file.owner_id,
        "coordinators": file.coordinator_ids,
        "state": file.state,
        "created_ms": file.created_ms,
    }


@app.command("coordinators")
def coordinators(
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the coordinators of diskless topics: their leaders, their content and their progress.

    If brokers have racks, a second table shows the produce gateways, to which clients of a rack are directed.
    "Calls" is the maximum number of commit calls over the network that one object of the broker needs, if
    all leaders are preferred replicas.

    \b
    Example:
      moldau diskless coordinators
    """
    found = with_client(bootstrap, timeout_s, describe_coordinators)
    gateways, brokers = with_client(bootstrap, timeout_s, describe_gateways)
    rows = [{**_coordinator_fields(row), **_gateway_fields(gateways, row.coordinator_id)} for row in found]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("Id", "Leader", "Epoch", "Partitions", "Batches", "Files", "Applied", "Log", "Snapshot", "Problem"),
        [
            (
                row["id"],
                row["leader"],
                row["epoch"],
                row["partitions"],
                row["live_batches"],
                row["files"],
                row["applied_offset"],
                None if row["problem"] else f"{row['log_start']}-{row['log_end']}",
                row["snapshot_offset"],
                row["problem"],
            )
            for row in rows
        ],
    )
    if all(broker.rack is None for broker in brokers):
        return
    print()
    print_table(
        ("Broker", "Rack", "Gateway of", "Calls", "State"),
        [
            (
                broker.broker_id,
                broker.rack,
                ",".join(map(str, broker.coordinator_ids)),
                broker.commit_calls,
                "live" if broker.is_live else "fenced",
            )
            for broker in brokers
        ],
    )


def _gateway_fields(gateways: Gateways, coordinator_id: int) -> dict[str, Any]:
    """The gateways by rack. Brokers without a rack are listed under the empty name."""
    racks = {
        rack or "": rows[coordinator_id] for rack, rows in gateways.by_rack.items() if coordinator_id in rows
    }
    return {
        "gateways": {rack: list(racks[rack]) for rack in sorted(racks)},
        "calls": {
            broker_id: gateways.commit_calls(broker_id) for rack in sorted(racks) for broker_id in racks[rack]
        },
    }


def _coordinator_fields(row: CoordinatorState) -> dict[str, Any]:
    state = row.state
    return {
        "id": row.coordinator_id,
        "leader": row.leader_id if row.leader_id >= 0 else None,
        "epoch": None if state is None else state.epoch,
        "partitions": None if state is None else state.partitions,
        "live_batches": None if state is None else state.live_batches,
        "files": None if state is None else state.files,
        "applied_offset": None if state is None else state.applied_offset,
        "log_start": None if state is None else state.log_start_offset,
        "log_end": None if state is None else state.log_end_offset,
        "snapshot_offset": None if state is None or state.snapshot_offset < 0 else state.snapshot_offset,
        "problem": row.problem,
    }
