"""``moldau records``."""

from typing import Annotated, Any

import typer

from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption, confirm
from moldau.cli.output import print_json, print_table
from moldau.cli.records.record_options import PartitionsOption
from moldau.cli.records.start_positions import find_positions, parse_start
from moldau.client.cluster import LATEST, Client, check, with_client
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

app = new_app(no_args_is_help=True)


@app.callback()
def _records() -> None:
    """Delete the oldest records of partitions."""


@app.command("delete")
def delete(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="WHERE",
            help="Delete all records before an offset, latest, -N (keep the last N), or @TIME.",
        ),
    ],
    partitions: PartitionsOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """Delete the records of a topic before an offset or a time, permanently.

    \b
    Example:
      moldau records delete orders --before @2031-05-17T00:00:00Z --yes
    """
    start = parse_start(before, "--before")
    confirm(f"Delete records of {topic} before {before}?", yes)

    async def work(client: Client) -> list[dict[str, Any]]:
        found = await client.topic(topic)
        wanted = partitions or list(found.leaders)
        if start.timestamp == LATEST:
            offsets = dict.fromkeys(wanted, LATEST)
        else:
            offsets = await find_positions(client, found, wanted, start)
        missing = sorted(set(offsets) - set(found.leaders))
        if missing:
            raise CommandError(f"topic {topic} has no partition {missing[0]}")
        by_leader: dict[int, list[DeleteRecordsPartition]] = {}
        for partition, offset in offsets.items():
            row = DeleteRecordsPartition(partition_index=partition, offset=offset)
            by_leader.setdefault(found.leaders[partition], []).append(row)
        rows = []
        for leader, asked in by_leader.items():
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=client.timeout_ms
            )
            response = await client.ask(request, broker=leader)
            for answer in (answer for each in response.topics for answer in each.partitions):
                check(answer.error_code, None, f"{topic}-{answer.partition_index}")
                rows.append({"partition": answer.partition_index, "earliest": answer.low_watermark})
        return sorted(rows, key=lambda row: row["partition"])

    rows = with_client(bootstrap, timeout_s, work)
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        print_table(("Partition", "Earliest"), [(row["partition"], row["earliest"]) for row in rows])
