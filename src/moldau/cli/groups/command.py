"""``moldau groups``."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.groups.member import commit_offsets
from moldau.cli.groups.offset_reset import Reset, TopicPartitions, new_offsets, parse_topics
from moldau.cli.groups.offsets import CommittedPosition, committed_offsets
from moldau.cli.options import (
    DEFAULT_BOOTSTRAP,
    BootstrapOption,
    JsonOption,
    TimeoutOption,
    confirm,
    timestamp_ms,
)
from moldau.cli.output import print_json, print_table
from moldau.client.cluster import LATEST, Client, check, with_client
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsRequest
from moldau.protocol.records.groups import decode_assignment
from moldau.runtime.errors import ErrorCode, KafkaError

app = new_app(no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
GroupsArgument = Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of groups.")]
NO_GROUP_STATES = ("Dead", "")


@app.command("list")
def list_groups(
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Only groups in this state, for instance Stable; may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the consumer groups.

    \b
    Example:
      moldau groups list --state Stable
    """
    rows = with_client(bootstrap, timeout_s, lambda client: _all_groups(client, states or []))
    if as_json:
        print_json(
            [
                {
                    "group": row.group_id,
                    "state": row.group_state,
                    "type": row.group_type,
                    "protocol_type": row.protocol_type,
                }
                for row in rows
            ]
        )
        return
    print_table(
        ("Group", "State", "Type", "Protocol"),
        [(row.group_id, row.group_state, row.group_type, row.protocol_type or None) for row in rows],
    )


async def _all_groups(client: Client, states: Sequence[str]) -> list[ListedGroup]:
    """Read the list from every broker, because each broker lists the groups that it coordinates."""

    async def of(broker: int) -> Sequence[ListedGroup]:
        response = await client.ask(ListGroupsRequest(states_filter=states), broker=broker)
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, f"broker {broker}: {response.error_code.name.upper()}")
        rows: Sequence[ListedGroup] = response.groups
        return rows

    brokers = [row.node_id for row in (await client.metadata([])).brokers]
    found = [row for broker in brokers for row in await client.retrying(partial(of, broker))]
    return sorted(found, key=lambda row: row.group_id)


@app.command("describe")
def describe(
    groups: GroupsArgument,
    members: Annotated[
        bool, typer.Option("--members", help="Show the members instead of the offsets.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Show groups: their committed offsets, their lag and their members.

    \b
    Example:
      moldau groups describe billing
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return [await _described(client, group) for group in groups]

    found = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json(found)
        return
    for index, group in enumerate(found):
        if index:
            print()
        coordinator, count = group["coordinator"], len(group["members"])
        print(f"{group['group']}  {group['state']}  {count} members  coordinator {coordinator}")
        if members:
            _print_members(group)
        else:
            _print_offsets(group)


def _print_members(group: dict[str, Any]) -> None:
    print_table(
        ("Member", "Instance", "Client", "Host", "Partitions"),
        [
            (
                row["member_id"],
                row["group_instance_id"],
                row["client_id"],
                row["host"],
                ",".join(row["partitions"]),
            )
            for row in group["members"]
        ],
    )


def _print_offsets(group: dict[str, Any]) -> None:
    columns = ("topic", "partition", "committed", "latest", "lag", "client_id")
    titles = ("Topic", "Partition", "Committed", "Latest", "Lag", "Client")
    print_table(titles, [tuple(row[column] for column in columns) for row in group["offsets"]])


async def _described(client: Client, name: str) -> dict[str, Any]:
    committed = await committed_offsets(client, name)
    group = await _group(client, name)
    if group.group_state in NO_GROUP_STATES and not committed:
        raise CommandError(f"there is no group {name}")
    readers = _readers(group)
    coordinator = await client.coordinator(name)
    rows = []
    for topic in sorted({*committed, *(topic for topic, _ in readers)}):
        latest = await _latest(client, topic)
        known = committed.get(topic, {})
        for partition in sorted({*known, *(index for name_, index in readers if name_ == topic)}):
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    **_progress(known.get(partition), latest.get(partition)),
                    "client_id": readers.get((topic, partition)),
                }
            )
    return {
        "group": name,
        "state": group.group_state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol_data,
        "coordinator": str(coordinator),
        "members": [_member(row) for row in group.members],
        "offsets": rows,
    }


def _progress(committed: CommittedPosition | None, latest: int | None) -> dict[str, int | None]:
    offset = None if committed is None else committed.offset
    lag = None if offset is None or latest is None else max(0, latest - offset)
    return {"committed": offset, "latest": latest, "lag": lag}


async def _latest(client: Client, name: str) -> dict[int, int]:
    """Log end offsets by partition. The result is empty for a deleted topic."""
    try:
        topic = await client.topic(name)
        found = await client.offsets(topic, dict.fromkeys(topic.leaders, LATEST))
    except KafkaError as error:
        if error.code is ErrorCode.unknown_topic_or_partition:
            return {}
        raise
    return {partition: row.offset for partition, row in found.items()}


async def _group(client: Client, name: str) -> DescribedGroup:
    async def attempt() -> DescribedGroup:
        request = DescribeGroupsRequest(groups=[name])
        response = await client.ask(request, broker=await client.coordinator(name))
        group: DescribedGroup = response.groups[0]
        if group.error_code is ErrorCode.group_id_not_found:
            return DescribedGroup(group_id=name)
        if group.error_code is not ErrorCode.none:
            raise KafkaError(group.error_code, f"group {name}: {group.error_code.name.upper()}")
        return group

    return await client.retrying(attempt)


def _partitions(assignment: bytes) -> list[tuple[str, int]]:
    if not assignment:
        return []
    try:
        rows = decode_assignment(assignment).assigned_partitions
    except ProtocolError:
        return []  # the assignment has an unknown format, because the members use another protocol
    return [(row.topic, index) for row in rows for index in row.partitions]


def _readers(group: DescribedGroup) -> dict[tuple[str, int], str]:
    """Client id of the member that reads each partition."""
    return {
        place: member.client_id for member in group.members for place in _partitions(member.member_assignment)
    }


def _member(row: Any) -> dict[str, Any]:
    return {
        "member_id": row.member_id,
        "group_instance_id": row.group_instance_id,
        "client_id": row.client_id,
        "host": row.client_host,
        "partitions": [f"{topic}-{index}" for topic, index in _partitions(row.member_assignment)],
    }


@app.command("delete")
def delete(
    groups: GroupsArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Delete groups that have no members, and the offsets that they have committed.

    \b
    Example:
      moldau groups delete billing --yes
    """
    confirm(f"Delete {', '.join(groups)} and their offsets?", yes)

    async def work(client: Client) -> None:
        for group in groups:
            request = DeleteGroupsRequest(groups_names=[group])
            response = await client.ask(request, broker=await client.coordinator(group))
            for row in response.results:
                check(row.error_code, None, f"group {row.group_id}")
            print(f"deleted {group}")

    with_client(bootstrap, timeout_s, work)


@app.command("reset-offsets")
def reset_offsets(
    group: GroupArgument,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1,…]", help="A topic or partitions; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions with committed offsets of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="After the last record.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="OFFSET", min=0, help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record from this time on (ISO 8601 or ms).",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Forward by N records, or back if N is negative."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Make the changes, or only show them.")
    ] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Set the offsets of a group without members. Without --execute, the command only shows the changes.

    \b
    Example:
      moldau groups reset-offsets billing --topic orders --to-earliest --execute
    """
    reset = Reset.chosen(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_time_ms=None if to_datetime is None else timestamp_ms(to_datetime, "--to-datetime"),
        shift_by=shift_by,
    )
    if bool(topics) == all_topics:
        raise typer.BadParameter("give --topic (as often as needed) or --all-topics")
    wanted = parse_topics(topics or [])
    rows = with_client(bootstrap, timeout_s, lambda client: _reset(client, group, wanted, reset, execute))
    if as_json:
        print_json({"group": group, "executed": execute, "offsets": rows})
        return
    columns = ("topic", "partition", "committed", "new")
    print_table(("Topic", "Partition", "Committed", "New"), [[row[name] for name in columns] for row in rows])
    if not execute:
        print("nothing was changed: use --execute to change the offsets")


async def _reset(
    client: Client, name: str, wanted: TopicPartitions, reset: Reset, execute: bool
) -> list[dict[str, Any]]:
    committed = await committed_offsets(client, name)
    members = len((await _group(client, name)).members)
    if members:
        raise CommandError(f"group {name} has {members} members: offsets can be reset when they have gone")
    if not wanted:
        wanted = {topic: list(partitions) for topic, partitions in committed.items() if partitions}
        if not wanted:
            raise CommandError(f"group {name} has committed nothing: name topics with --topic")
    rows = []
    for topic_name, partitions in wanted.items():
        topic = await client.topic(topic_name)
        known = {index: row.offset for index, row in committed.get(topic_name, {}).items()}
        new = await new_offsets(client, topic, partitions or list(topic.leaders), known, reset)
        if execute:
            await commit_offsets(client, name, topic, new)
        rows += [
            {"topic": topic_name, "partition": partition, "committed": known.get(partition), "new": offset}
            for partition, offset in sorted(new.items())
        ]
    return rows
