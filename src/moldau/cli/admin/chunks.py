"""``moldau chunks``."""

from collections import Counter
from typing import Annotated, Any, TypeAlias

import typer

from moldau.chunks.placement import next_replicas
from moldau.cli.app import new_app
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption
from moldau.cli.output import print_json, print_table, time_text
from moldau.client.chunks import (
    ChunkedPartition,
    alter_chunk,
    chunked_partitions,
    create_chunk,
)
from moldau.client.cluster import Client, with_client
from moldau.client.moves import placement
from moldau.protocol.messages.metadata import MetadataResponseChunk

app = new_app(no_args_is_help=True)

ChunkTopicOption: TypeAlias = Annotated[
    str, typer.Option("--topic", metavar="TOPIC", help="Name of the topic.")
]
ChunkPartitionOption: TypeAlias = Annotated[
    int, typer.Option("--partition", "-p", metavar="N", min=0, help="The partition.")
]
ChunkTopicsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Name of a topic; may be repeated. All by default."),
]


def brokers_of(text: str, option: str) -> list[int]:
    """The broker ids of an option, separated by commas."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of ids", param_hint=option)
    return [int(word) for word in words]


@app.command("list")
def list_chunks(
    topics: ChunkTopicsOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the chunks of each partition that has chunks, and the brokers of each chunk.

    The last chunk of a partition is the active chunk, which has no end. "In sync" lists the brokers that
    have the whole chunk.

    \b
    Example:
      moldau chunks list --topic orders
    """
    found = with_client(bootstrap, timeout_s, lambda client: chunked_partitions(client, topics or None))
    chunked = [partition for partition in found if partition.start_offset >= 0]
    if as_json:
        print_json([fields for partition in chunked for fields in chunk_fields(partition)])
        return
    print_table(
        ("Topic", "Partition", "Start", "End", "Replicas", "In sync", "Moving", "Bytes", "Latest record"),
        [cells for partition in chunked for cells in _rows(partition)],
    )


def _rows(partition: ChunkedPartition) -> list[tuple[object, ...]]:
    place = partition.topic, partition.index
    rows: list[tuple[object, ...]] = [
        (
            *place,
            chunk.start_offset,
            chunk.end_offset,
            _ids(chunk.replica_nodes),
            _ids(chunk.isr_nodes) or "none",
            _moving(chunk),
            chunk.size_bytes,
            time_text(chunk.max_timestamp),
        )
        for chunk in partition.chunks
    ]
    active = _ids(partition.replicas), _ids(partition.isr)
    return [*rows, (*place, partition.start_offset, None, *active, None, None, None)]


def _moving(chunk: MetadataResponseChunk) -> str | None:
    added, removed = _ids(chunk.adding_replicas), _ids(chunk.removing_replicas)
    words = [f"{sign}{ids}" for sign, ids in (("+", added), ("-", removed)) if ids]
    return " ".join(words) or None


def _ids(ids: Any) -> str:
    return ",".join(map(str, ids))


def chunk_fields(partition: ChunkedPartition) -> list[dict[str, Any]]:
    """The chunks of a partition for JSON. The active chunk is the last one. The list is empty if the
    partition has never had inactive chunks."""
    if partition.start_offset < 0:
        return []
    place = {"topic": partition.topic, "partition": partition.index}
    rows: list[dict[str, Any]] = [
        {
            **place,
            "active": False,
            "start_offset": chunk.start_offset,
            "stop_offset": chunk.stop_offset,
            "end_offset": chunk.end_offset,
            "epoch": chunk.chunk_epoch,
            "replicas": list(chunk.replica_nodes),
            "isr": list(chunk.isr_nodes),
            "adding": list(chunk.adding_replicas),
            "removing": list(chunk.removing_replicas),
            "bytes": chunk.size_bytes,
            "max_timestamp_ms": chunk.max_timestamp,
        }
        for chunk in partition.chunks
    ]
    active = {
        **place,
        "active": True,
        "start_offset": partition.start_offset,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }
    return [*rows, active]


@app.command("create")
def create(
    topic: ChunkTopicOption,
    partition: ChunkPartitionOption,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="ID,ID,…",
            help="Brokers of the new chunk, the leader first; by default the brokers with the fewest bytes.",
        ),
    ] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """End the active chunk of a partition, and continue the partition on other brokers.

    The records stay where they are, and new records go to the new brokers.

    \b
    Example:
      moldau chunks create --topic orders --partition 0 --replicas 1,2,3
    """
    chosen = None if replicas is None else brokers_of(replicas, "--replicas")

    async def work(client: Client) -> tuple[list[int], int]:
        brokers = chosen
        if brokers is None:
            plans = await _plans(client, [topic])
            brokers = next((plan["replicas"] for plan in plans if plan["partition"] == partition), [])
        return brokers, await create_chunk(client, topic, partition, brokers)

    brokers, border = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json({"topic": topic, "partition": partition, "start_offset": border, "replicas": brokers})
    else:
        print(f"{topic}-{partition}: records from offset {border} on are on brokers {_ids(brokers)}")


@app.command("alter")
def alter(
    topic: ChunkTopicOption,
    partition: ChunkPartitionOption,
    start_offset: Annotated[
        int, typer.Option("--start-offset", metavar="OFFSET", min=0, help="First offset of the chunk.")
    ],
    replicas: Annotated[
        str | None,
        typer.Option("--replicas", metavar="ID,ID,…", help="Brokers to which the chunk moves."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel a move that is in progress.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Move an inactive chunk to other brokers, or cancel its move.

    The command returns when the move has begun; `moldau chunks list` shows the move until all new brokers
    have the chunk. The replicas of the active chunk are changed by `moldau topics reassign`.

    \b
    Example:
      moldau chunks alter --topic orders --partition 0 --start-offset 0 --replicas 4,5,6
    """
    if cancel == (replicas is not None):
        raise typer.BadParameter("give either --replicas or --cancel")
    brokers = None if replicas is None else brokers_of(replicas, "--replicas")
    with_client(
        bootstrap, timeout_s, lambda client: alter_chunk(client, topic, partition, start_offset, brokers)
    )
    goal = "its move is cancelled" if brokers is None else f"moves to brokers {_ids(brokers)}"
    print(f"{topic}-{partition} at {start_offset}: {goal}")


@app.command("plan")
def plan(
    topics: ChunkTopicsOption = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the brokers for the next chunk of each partition. Nothing is changed.

    The replicas are spread over the racks, and brokers with the fewest bytes come first.

    \b
    Example:
      moldau chunks plan --topic orders
    """
    plans = with_client(bootstrap, timeout_s, lambda client: _plans(client, topics or None))
    if as_json:
        print_json(plans)
        return
    print_table(
        ("Topic", "Partition", "Active on", "Next chunk on"),
        [(row["topic"], row["partition"], _ids(row["active"]), _ids(row["replicas"])) for row in plans],
    )


async def _plans(client: Client, names: list[str] | None) -> list[dict[str, Any]]:
    """The brokers of the next chunks. Each plan takes the earlier plans into account, so that leaders are
    spread over the brokers.
    """
    # The bytes of all topics count, not only the bytes of the named topics.
    found = await placement(client, None)
    load = Counter(found.load_bytes)
    # The sizes of log folders do not contain inactive chunks.
    for each in await chunked_partitions(client, None):
        for chunk in each.chunks:
            load.update(dict.fromkeys(chunk.isr_nodes, chunk.size_bytes))
    planned: Counter[int] = Counter()
    rows = []
    for partition in await chunked_partitions(client, names):
        if names is None and partition.topic.startswith("__"):
            continue
        brokers = next_replicas(len(partition.replicas), found.racks, load, planned)
        planned.update(brokers)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.index,
                "active": list(partition.replicas),
                "replicas": list(brokers),
            }
        )
    return rows
