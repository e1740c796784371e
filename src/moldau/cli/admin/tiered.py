"""``moldau tiered``."""

from typing import Annotated, Any

import typer

from moldau.cli.admin.tiered_client import TieredTopic, describe_topics, list_segments
from moldau.cli.app import new_app
from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, TimeoutOption
from moldau.cli.output import print_json, print_table, time_text
from moldau.client.cluster import Client, with_client
from moldau.cluster.folders.meta_properties import encode_uuid as topic_id_text
from moldau.protocol.decoding_errors import ProtocolError
from moldau.protocol.own.tiered.describe_topics import TieredDescribedPartition
from moldau.protocol.own.tiered.list_segments import TieredSegment
from moldau.runtime.errors import ErrorCode
from moldau.tiered.metadata.lifecycle import RemoteLogSegmentState
from moldau.tiered.storage.object_layout import decode_location

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
    """Show tiered topics: the local and the remote part of their partitions.

    "Local start" is the first offset on the leader's disk, and "Remote end" is the last offset that was
    copied. If the partition has inactive chunks, "Local start" and "Local bytes" include the chunks on other
    brokers. "Unfinished" segments are being copied or deleted, or their copy failed.

    \b
    Example:
      moldau tiered topics orders
    """
    found = with_client(bootstrap, timeout_s, lambda client: describe_topics(client, names or []))
    if as_json:
        print_json([_topic_fields(topic) for topic in found])
        return
    print_table(
        (
            "Topic",
            "Partition",
            "Log start",
            "Local start",
            "Remote end",
            "High watermark",
            "Local bytes",
            "Remote bytes",
            "Segments",
            "Unfinished",
            "Problem",
        ),
        [
            (topic.name, index, *_cells(row))
            for topic in found
            for index, row in sorted(topic.partitions.items())
        ],
    )


def _cells(row: TieredDescribedPartition) -> tuple[object, ...]:
    known = row.error_code is ErrorCode.none
    remote = (row.remote_size_bytes, row.remote_segments, row.unfinished_segments) if known else (None,) * 3
    return (
        _offset(row.log_start_offset),
        _offset(row.local_log_start_offset),
        _offset(row.highest_remote_offset),
        _offset(row.high_watermark),
        row.local_size_bytes,
        *remote,
        None if known else row.error_message or row.error_code.name,
    )


def _offset(offset: int) -> int | None:
    return None if offset < 0 else offset


def _topic_fields(topic: TieredTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic_id_text(topic.topic_id),
        "partitions": [
            {
                "partition": index,
                "log_start": _offset(row.log_start_offset),
                "local_start": _offset(row.local_log_start_offset),
                "remote_end": _offset(row.highest_remote_offset),
                "high_watermark": _offset(row.high_watermark),
                "local_bytes": row.local_size_bytes,
                "remote_bytes": row.remote_size_bytes,
                "segments": row.remote_segments,
                "unfinished": row.unfinished_segments,
                "problem": None if row.error_code is ErrorCode.none else row.error_message,
            }
            for index, row in sorted(topic.partitions.items())
        ],
    }


@app.command("segments")
def segments(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of a topic.")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition.")
    ] = None,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutOption = 30.0,
) -> None:
    """List the remote segments of a topic in any state.

    \b
    Example:
      moldau tiered segments orders --partition 0
    """

    async def collect(client: Client) -> list[tuple[int, TieredSegment]]:
        if not await describe_topics(client, [name]):
            raise CommandError(f"no tiered topic is called {name}")
        return [found async for found in list_segments(client, name, partition)]

    found = with_client(bootstrap, timeout_s, collect)
    if as_json:
        print_json([_segment_fields(index, segment) for index, segment in found])
        return
    print_table(
        ("Partition", "Start", "End", "Bytes", "Latest record", "Epochs", "State", "Segment"),
        [
            (
                index,
                segment.start_offset,
                segment.end_offset,
                segment.size_bytes,
                time_text(segment.max_timestamp_ms),
                " ".join(f"{each.epoch}@{each.start_offset}" for each in segment.leader_epochs),
                _state(segment.state),
                segment.id,
            )
            for index, segment in found
        ],
    )


def _segment_fields(index: int, segment: TieredSegment) -> dict[str, Any]:
    return {
        "partition": index,
        "id": str(segment.id),
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "state": _state(segment.state),
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "broker": segment.broker_id,
        "leader_epochs": [[each.epoch, each.start_offset] for each in segment.leader_epochs],
        "has_aborted_transactions": not segment.txn_index_empty,
        "attempt": _attempt(segment.custom_metadata),
    }


def _state(number: int) -> str:
    try:
        return RemoteLogSegmentState(number).name
    except ValueError:
        return str(number)


def _attempt(custom_metadata: bytes | None) -> str | None:
    """The name of the copy attempt that wrote the segment's objects, for the built-in storage manager."""
    if custom_metadata is None:
        return None
    try:
        return decode_location(bytes(custom_metadata)).attempt or None
    except ProtocolError:
        return None
