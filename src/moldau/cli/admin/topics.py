"""``moldau topics``."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from moldau.cli.admin.chunks import chunk_fields
from moldau.cli.admin.elections import elect
from moldau.cli.admin.moving import (
    DryRunOption,
    NoWaitOption,
    ThrottleOption,
    YesOption,
    make_moves,
    show_moves,
)
from moldau.cli.admin.resource_configs import changed_configs, names_with, set_configs
from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    ConfigsOption,
    JsonOption,
    TimeoutOption,
    confirm,
    key_values,
)
from moldau.cli.output import print_json, print_table
from moldau.client.chunks import chunked_partitions
from moldau.client.cluster import EARLIEST, LATEST, Client, ClusterTopic, check, topic_problem, with_client
from moldau.cluster.folders.meta_properties import encode_uuid as topic_id_text
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.metadata import MetadataResponseTopic
from moldau.runtime.errors import ErrorCode, KafkaError

app = new_app(no_args_is_help=True)

NamesArgument = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Also show internal topics.")] = False,
    diskless: Annotated[
        bool, typer.Option("--diskless", help="Show only topics whose records are in object storage.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the topics.

    \b
    Example:
      moldau topics list --json
    """

    async def work(client: Client) -> list[MetadataResponseTopic]:
        rows = [row for row in (await client.metadata()).topics if internal or not row.is_internal]
        if diskless:
            names = [row.name or "" for row in rows]
            wanted = await names_with(client, names, "diskless.enable", "true")
            rows = [row for row in rows if row.name in wanted]
        return sorted(rows, key=lambda row: row.name or "")

    found = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json([_summary(row) for row in found])
        return
    print_table(
        ("Topic", "Partitions", "Replicas", "Topic id"),
        [(row.name, len(row.partitions), _replicas(row), topic_id_text(row.topic_id)) for row in found],
    )


def _replicas(row: MetadataResponseTopic) -> int:
    return max((len(partition.replica_nodes) for partition in row.partitions), default=0)


def _summary(row: MetadataResponseTopic) -> dict[str, Any]:
    return {
        "name": row.name,
        "topic_id": topic_id_text(row.topic_id),
        "partitions": len(row.partitions),
        "replication_factor": _replicas(row),
        "internal": row.is_internal,
    }


@app.command("create")
def create(
    names: NamesArgument,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", metavar="N", help="Number of partitions; -1 means the node's default."
        ),
    ] = -1,
    replicas: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            help="Number of replicas of each partition; -1 means the node's default.",
        ),
    ] = -1,
    configs: ConfigsOption = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if a topic already exists.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the request, and create nothing.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Create topics.

    \b
    Example:
      moldau topics create orders --partitions 12 --config retention.ms=86400000
    """
    wanted = [
        CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[
                CreatableTopicConfig(name=key, value=value)
                for key, value in key_values(configs, "--config").items()
            ],
        )
        for name in names
    ]

    async def work(client: Client) -> Sequence[CreatableTopicResult]:
        request = CreateTopicsRequest(topics=wanted, timeout_ms=client.timeout_ms, validate_only=dry_run)
        rows: Sequence[CreatableTopicResult] = (await client.ask(request)).topics
        return rows

    rows = with_client(bootstrap, timeout_s, work)
    _report_created(rows, as_json, dry_run, if_not_exists)


def _report_created(
    rows: Sequence[CreatableTopicResult], as_json: bool, dry_run: bool, if_not_exists: bool
) -> None:
    made = [row for row in rows if row.error_code is ErrorCode.none]
    if as_json:
        print_json(
            [
                {
                    "name": row.name,
                    "topic_id": topic_id_text(row.topic_id),
                    "partitions": row.num_partitions,
                    "replication_factor": row.replication_factor,
                }
                for row in made
            ]
        )
    else:
        for row in made:
            print(f"{'would create' if dry_run else 'created'} {row.name} ({row.num_partitions} partitions)")
    for row in rows:
        if not (if_not_exists and row.error_code is ErrorCode.topic_already_exists):
            check(row.error_code, row.error_message, row.name)


@app.command("describe")
def describe(
    names: NamesArgument,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show topics' partitions, their replicas and offsets, and the configs that were set.

    \b
    Example:
      moldau topics describe orders
    """
    described = with_client(bootstrap, timeout_s, lambda client: _described(client, names))
    if as_json:
        print_json(described)
        return
    for index, topic in enumerate(described):
        if index:
            print()
        settings = " ".join(f"{key}={value}" for key, value in topic["configs"].items())
        print(f"{topic['name']}  {topic['topic_id']}{'  ' + settings if settings else ''}")
        print_table(
            ("Partition", "Leader", "Epoch", "Replicas", "In sync", "Offline", "Earliest", "Latest"),
            [
                (
                    row["partition"],
                    row["leader"],
                    row["leader_epoch"],
                    ",".join(map(str, row["replicas"])),
                    ",".join(map(str, row["isr"])),
                    ",".join(map(str, row["offline"])) or None,
                    row["earliest"],
                    row["latest"],
                )
                for row in topic["partitions"]
            ],
        )
        if chunks := [chunk for row in topic["partitions"] for chunk in row.get("chunks", ())]:
            print_table(
                ("Partition", "Chunk start", "Chunk end", "Replicas", "In sync", "Bytes"),
                [
                    (
                        chunk["partition"],
                        chunk["start_offset"],
                        chunk.get("end_offset"),
                        ",".join(map(str, chunk["replicas"])),
                        ",".join(map(str, chunk["isr"])),
                        chunk.get("bytes"),
                    )
                    for chunk in chunks
                ],
            )


async def _described(client: Client, names: list[str]) -> list[dict[str, Any]]:
    rows = (await client.metadata(names)).topics
    for row in rows:
        if row.error_code is not ErrorCode.none:
            raise KafkaError(row.error_code, topic_problem(row.name or "", row.error_code))
    configs = await changed_configs(client, [row.name or "" for row in rows])
    described = [await _described_one(client, row, configs[row.name or ""]) for row in rows]
    for chunked in await chunked_partitions(client, names):
        if fields := chunk_fields(chunked):
            topic = next(each for each in described if each["name"] == chunked.topic)
            topic["partitions"][chunked.index]["chunks"] = fields
    return described


async def _described_one(
    client: Client, row: MetadataResponseTopic, configs: dict[str, str | None]
) -> dict[str, Any]:
    led = {part.partition_index: part.leader_id for part in row.partitions if part.leader_id >= 0}
    topic = ClusterTopic(row.name or "", row.topic_id, led)
    earliest = await client.offsets(topic, dict.fromkeys(led, EARLIEST))
    latest = await client.offsets(topic, dict.fromkeys(led, LATEST))
    partitions = [
        {
            "partition": part.partition_index,
            "leader": part.leader_id,
            "leader_epoch": part.leader_epoch,
            "replicas": list(part.replica_nodes),
            "isr": list(part.isr_nodes),
            "offline": list(part.offline_replicas),
            "earliest": earliest[part.partition_index].offset if part.partition_index in led else None,
            "latest": latest[part.partition_index].offset if part.partition_index in led else None,
        }
        for part in sorted(row.partitions, key=lambda part: part.partition_index)
    ]
    return {**_summary(row), "configs": configs, "partitions": partitions}


@app.command("alter")
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="New number of partitions; it can only grow."
        ),
    ] = None,
    configs: ConfigsOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Reset a config to its default; may be repeated."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Add partitions to a topic, or change its configs.

    \b
    Example:
      moldau topics alter orders --partitions 24 --config retention.ms=3600000
    """
    changes = key_values(configs, "--config")
    if partitions is None and not changes and not unset:
        raise typer.BadParameter("nothing to change: give --partitions, --config or --unset")

    async def work(client: Client) -> None:
        if changes or unset:
            await set_configs(client, "topic", name, changes, unset or [])
        if partitions is not None:
            wanted = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
            request = CreatePartitionsRequest(topics=[wanted], timeout_ms=client.timeout_ms)
            for row in (await client.ask(request)).results:
                check(row.error_code, row.error_message, row.name)

    with_client(bootstrap, timeout_s, work)
    print(f"changed {name}")


@app.command("reassign")
def reassign(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics; without names, all topics.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", min=1, metavar="N", help="New number of replicas of each partition."
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="ID,ID,…", help="Only these brokers get replicas."),
    ] = None,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
    throttle: ThrottleOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Change the replicas of topics: their number, or their brokers.

    Replicas are moved only if necessary, and are spread over the racks.

    \b
    Example:
      moldau topics reassign orders --replication-factor 3 --dry-run
    """
    only = None
    if brokers is not None:
        only = [int(word) if word.isdecimal() else -1 for word in brokers.split(",")]
        if -1 in only:
            raise typer.BadParameter(f"{brokers!r} is not a list of ids", param_hint="--brokers")
    make_moves(
        bootstrap,
        timeout_s,
        names or None,
        replication_factor=replicas,
        only=only,
        dry_run=dry_run,
        wait=not no_wait,
        yes=yes,
        as_json=as_json,
        throttle=throttle,
    )


@app.command("moves")
def moves(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics; without names, all topics.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the moves, and remove their throttle.")
    ] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Cancel the moves, and remove their throttle. The old replicas stay."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show the moves of partitions that are in progress, from any tool.

    \b
    Example:
      moldau topics moves orders --wait
    """
    if wait and cancel:
        raise typer.BadParameter("give either --wait or --cancel")
    show_moves(bootstrap, timeout_s, names or (), wait=wait, cancel=cancel, yes=yes, as_json=as_json)


@app.command("elect")
def elect_leaders(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics; without names, all topics.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect leaders of partitions without a leader, although acknowledged records may be lost.",
        ),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Make the preferred replicas of topics leaders again.

    The preferred replica is the first replica in the list of a partition. It must be in sync.

    \b
    Example:
      moldau topics elect orders
    """
    if unclean:
        which = ", ".join(names) if names else "all topics"
        confirm(f"Elect leaders for {which}, although records may be lost?", yes)
    elect(bootstrap, timeout_s, names or None, unclean=unclean, as_json=as_json)


@app.command("delete")
def delete(
    names: NamesArgument,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if a topic does not exist.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Delete topics and all of their records.

    Asks for confirmation on a terminal.

    \b
    Example:
      moldau topics delete orders --yes
    """
    confirm(f"Delete {', '.join(names)} and all records?", yes)

    async def work(client: Client) -> Sequence[Any]:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names],
            topic_names=names,
            timeout_ms=client.timeout_ms,
        )
        rows: Sequence[Any] = (await client.ask(request)).responses
        return rows

    rows = with_client(bootstrap, timeout_s, work)
    failures = []
    for row in rows:
        if row.error_code is ErrorCode.none:
            print(f"deleted {row.name}")
        elif not (if_exists and row.error_code is ErrorCode.unknown_topic_or_partition):
            failures.append(topic_problem(row.name or "", row.error_code))
    if failures:
        raise CommandError("; ".join(failures))
