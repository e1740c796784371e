"""The options of the commands that write and read records."""

import enum
from pathlib import Path
from typing import Annotated

import typer


class Codec(enum.StrEnum):
    """Codecs by Kafka's names."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(enum.StrEnum):
    """The replicas that must have a record before it is acknowledged."""

    ALL = "all"
    MINUS_ONE = "-1"
    LEADER = "1"
    NONE = "0"


class LineKind(enum.StrEnum):
    """Formats of an input or output line."""

    LINES = "lines"
    JSON = "json"


PartitionsOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition; may be repeated."),
]

# -- produce ----------------------------------------------------------------------------------

FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read FILE instead of stdin.")
]
InputOption = Annotated[
    LineKind,
    typer.Option("--format", help="A line is a value, or a JSON object as `consume --json` prints it."),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", metavar="TEXT", help="Each line is KEY, this text, and VALUE."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="Key of every record.")]
HeadersOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; may be repeated."),
]
NullOption = Annotated[
    str | None,
    typer.Option(
        "--null", metavar="TEXT", help="Send null (a tombstone) for each key or value that is TEXT."
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Partition of every record."),
]
CompressionOption = Annotated[Codec, typer.Option("--compression", "-z", help="Compression of batches.")]
AcksOption = Annotated[
    Acks,
    typer.Option(
        "--acks",
        help=(
            "Replicas that must have a record before it is acknowledged: all in-sync replicas, the leader, "
            "or none."
        ),
    ),
]
IdempotentOption = Annotated[
    bool | None,
    typer.Option(
        "--idempotent/--no-idempotent",
        help="Never store a record twice if a send is repeated. It is on by default with --acks all.",
    ),
]

# -- consume ----------------------------------------------------------------------------------

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="WHERE",
        help=(
            "beginning, latest, an offset, -N for the last N of each partition, or @TIME (ISO 8601, or "
            "milliseconds since 1970). With --group, it applies only to partitions without a committed "
            "offset."
        ),
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", help="Read as a member of this consumer group, and commit."
    ),
]
FollowOption = Annotated[
    bool, typer.Option("--follow", "-F", help="At the end, wait for more records until Ctrl-C.")
]
CountOption = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=0, help="Stop after this number of records.")
]
IdleTimeoutOption = Annotated[
    float | None,
    typer.Option("--idle-timeout", metavar="SECONDS", min=0, help="Stop if no record arrives for this time."),
]
OutputOption = Annotated[
    LineKind, typer.Option("--format", help="Print plain values, or one JSON object per line.")
]
ShowKeyOption = Annotated[bool, typer.Option("--key", "-k", help="Print keys.")]
ShowHeadersOption = Annotated[bool, typer.Option("--headers", help="Print headers.")]
ShowTimestampOption = Annotated[bool, typer.Option("--timestamp", "-T", help="Print timestamps (ms).")]
ShowOffsetOption = Annotated[bool, typer.Option("--offset", "-o", help="Print PARTITION:OFFSET.")]
SeparatorOption = Annotated[
    str,
    typer.Option("--separator", metavar="TEXT", help="Text between the printed fields.", show_default="TAB"),
]
ReadCommittedOption = Annotated[
    bool, typer.Option("--read-committed", help="Leave out the records of aborted transactions.")
]
