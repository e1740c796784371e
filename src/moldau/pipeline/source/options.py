"""The options of ``format("moldau")``: the options of Spark's Kafka connector, and a few more."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from moldau.client.cluster import parse_bootstrap
from moldau.client.errors import ToolError
from moldau.pipeline.source.kafka_options import (
    BOOTSTRAP,
    CLIENT_RACK,
    COMPRESSION,
    ISOLATION,
    MEANINGFUL,
    PREFIX,
    REQUEST_TIMEOUT,
    TRANSACTION_TIMEOUT,
    TRANSACTIONAL_ID,
    check_kafka_option,
    unknown,
)
from moldau.protocol.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau.records.compression import Compression

EARLIEST: Final = EARLIEST_TIMESTAMP
LATEST: Final = LATEST_TIMESTAMP
"""Offsets with a special meaning in the connector's JSON. They are numbers of ListOffsets."""

STORAGE_PREFIXES: Final = ("diskless.storage.", "rsm.config.")
POLL_TIMEOUT: Final = "kafkaConsumer.pollTimeoutMs"
_NUMBERS_WITHOUT_EFFECT: Final = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
WITHOUT_EFFECT: Final = ("groupIdPrefix", *_NUMBERS_WITHOUT_EFFECT)
"""Options of the connector's consumers. They have no effect, because Moldau uses no consumer group and its
client retries by itself."""
CONNECTOR: Final = (
    *MEANINGFUL,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "topic",
    POLL_TIMEOUT,
    *WITHOUT_EFFECT,
)
"""Options of Spark's Kafka connector, apart from configurations of Kafka's clients."""
FIRST_BATCH: Final = "firstTransactionalBatch"
DECODE_IN: Final = "decodeIn"
JVM: Final = "jvm"
_KNOWN: Final = (*CONNECTOR, "readFrom", DECODE_IN, FIRST_BATCH)
_TIME_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_BY_LOWER_CASE: Final = {name.lower(): name for name in _KNOWN}
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark itself. Spark passes them to data sources, too."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_STRATEGIES: Final = ("subscribe", "subscribePattern", "assign")

OffsetsByTopic: TypeAlias = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Timestamps:
    """A position by time: the first record whose timestamp is at or after the time. There is one time for all
    partitions, or one time for each partition. Times are in milliseconds since the epoch."""

    everywhere: int | None = None
    by_partition: OffsetsByTopic = field(default_factory=dict)
    or_latest: bool = False
    """If no record has this time or a later one, use the end of the partition instead of raising an error."""


StartPosition: TypeAlias = OffsetsByTopic | Timestamps | int
"""A position: offsets by topic and partition, times, :data:`EARLIEST` or :data:`LATEST`."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of the source.

    ``topics`` has the chosen partitions of each topic; ``None`` means all partitions. If there is a
    ``pattern``, the topics are looked up. ``starting`` is ``None`` if the option was not given, because batch
    and streaming queries have different defaults.
    """

    bootstrap: str
    topics: Mapping[str, tuple[int, ...] | None]
    pattern: str | None
    starting: StartPosition | None
    ending: StartPosition | None
    min_partitions: int
    max_records_per_partition: int | None
    """Maximum number of offsets of a task."""
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    """Maximum time that a stream waits for ``min_offsets_per_trigger``."""
    fail_on_data_loss: bool
    include_headers: bool
    committed_only: bool
    storage: Mapping[str, str]
    """Options whose names begin with ``diskless.storage.`` or ``rsm.config.``."""
    from_brokers: bool
    decode_in: str | None
    """The option ``decodeIn``: ``jvm`` or ``python``. ``None`` means the JVM if the session has the jar for
    it, and otherwise Python."""
    rack: str
    """The option ``kafka.client.rack``: the rack of the tasks; empty if it is not known."""
    topic: str | None
    """The topic of a sink."""
    compression: Compression
    """Compression of a sink's batches."""
    transactional_id: str | None
    """The option ``kafka.transactional.id``. If it is set, the sink writes each batch of a query as one
    transaction."""
    transaction_timeout_ms: int
    first_transactional_batch: int
    """The option ``firstTransactionalBatch``: batches with smaller ids are not written."""
    request_timeout_s: float
    """Timeout of the driver's requests to brokers."""
    poll_timeout_s: float
    """Timeout of a task that makes no progress."""

    @property
    def reads(self) -> bool:
        """Whether the options name topics to read."""
        return bool(self.topics) or self.pattern is not None


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a user. Option names are case-insensitive. Raises :class:`ToolError` for
    unsupported, unknown or invalid options."""
    found, storage = _sorted_out(given)
    if not found.get(BOOTSTRAP, "").strip():
        raise ToolError(f"option {BOOTSTRAP!r} is missing")
    parse_bootstrap(found[BOOTSTRAP], BOOTSTRAP)
    isolation = found.get(ISOLATION, "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ToolError(f"option {ISOLATION!r} is read_committed or read_uncommitted, not {isolation!r}")
    read_from = found.get("readFrom", "objects").lower()
    if read_from not in ("objects", "brokers"):
        raise ToolError(f"option 'readFrom' is objects or brokers, not {read_from!r}")
    decode_in = found[DECODE_IN].lower() if DECODE_IN in found else None
    if decode_in not in (None, JVM, "python"):
        raise ToolError(f"option {DECODE_IN!r} is jvm or python, not {found[DECODE_IN]!r}")
    if sum(name in found for name in _STRATEGIES) > 1:
        raise ToolError(_ONE_STRATEGY)
    pattern = found.get("subscribePattern")
    if pattern is not None:
        _check_pattern(pattern)
    for name in _NUMBERS_WITHOUT_EFFECT:
        if not found.get(name, "0").isdecimal():
            raise ToolError(f"option {name!r} is a number, not {found[name]!r}")
    least, most = _optional("minOffsetsPerTrigger", found), _optional("maxOffsetsPerTrigger", found)
    if least is not None and most is not None and least > most:
        raise ToolError(f"option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most})")
    return SourceOptions(
        bootstrap=found[BOOTSTRAP],
        topics=_topics(found),
        pattern=pattern,
        starting=_position(found, "starting"),
        ending=_position(found, "ending"),
        min_partitions=_count("minPartitions", found.get("minPartitions", "1")),
        max_records_per_partition=_optional("maxRecordsPerPartition", found),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_duration_s("maxTriggerDelay", found.get("maxTriggerDelay", "15m")),
        fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
        include_headers=_flag("includeHeaders", found.get("includeHeaders", "false")),
        committed_only=isolation == "read_committed",
        storage=storage,
        from_brokers=read_from == "brokers",
        decode_in=decode_in,
        rack=found.get(CLIENT_RACK, "").strip(),
        topic=found.get("topic"),
        compression=_compression(found.get(COMPRESSION, "none")),
        transactional_id=_transactional_id(found),
        transaction_timeout_ms=_transaction_timeout_ms(found),
        first_transactional_batch=_batch_id(found.get(FIRST_BATCH, "0")),
        request_timeout_s=_count(REQUEST_TIMEOUT, found.get(REQUEST_TIMEOUT, "30000")) / 1000,
        poll_timeout_s=_count(POLL_TIMEOUT, found.get(POLL_TIMEOUT, "30000")) / 1000,
    )


_ONE_STRATEGY: Final = "give one of the options 'subscribe', 'subscribePattern' and 'assign'"


def check_batch(options: SourceOptions) -> None:
    """Check the options of a batch query. Raises :class:`ToolError`."""
    if not options.reads:
        raise ToolError(_ONE_STRATEGY)
    for name, position, forbidden in (
        ("startingOffsets", options.starting, LATEST),
        ("endingOffsets", options.ending, EARLIEST),
    ):
        if position == forbidden or (
            isinstance(position, Mapping)
            and any(offset == forbidden for rows in position.values() for offset in rows.values())
        ):
            raise ToolError(f"option {name!r} has an offset that it cannot have in a batch query")


def check_streaming(options: SourceOptions) -> None:
    """Check the options of a streaming query. Raises :class:`ToolError`."""
    if not options.reads:
        raise ToolError(_ONE_STRATEGY)
    if options.ending is not None:
        raise ToolError("a streaming query has no ending offsets")


def _sorted_out(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    found: dict[str, str] = {}
    storage: dict[str, str] = {}
    for key, value in given.items():
        if key.lower().startswith(STORAGE_PREFIXES):
            storage[key.lower()] = value
            continue
        if key.lower() in _SPARKS_OWN:
            continue
        name = _BY_LOWER_CASE.get(key.lower())
        if name is not None:
            found[name] = value
        elif key.lower().startswith(PREFIX):
            check_kafka_option(key, value)
        else:
            raise unknown(key, _KNOWN)
    return found, storage


def _transactional_id(found: Mapping[str, str]) -> str | None:
    given = found.get(TRANSACTIONAL_ID)
    if given is not None and not given.strip():
        raise ToolError(f"option {TRANSACTIONAL_ID!r} is empty")
    if given is None and FIRST_BATCH in found:
        raise ToolError(f"option {FIRST_BATCH!r} needs the option {TRANSACTIONAL_ID!r}")
    return given


def _transaction_timeout_ms(found: Mapping[str, str]) -> int:
    timeout_ms = _count(TRANSACTION_TIMEOUT, found.get(TRANSACTION_TIMEOUT, "60000"))
    if timeout_ms > _INT32_MAX:
        raise ToolError(f"option {TRANSACTION_TIMEOUT!r} is at most {_INT32_MAX}, not {timeout_ms}")
    return timeout_ms


def _batch_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= _INT64_MAX):
        raise ToolError(f"option {FIRST_BATCH!r} is the id of a batch, not {text!r}")
    return int(text)


def _compression(name: str) -> Compression:
    try:
        return Compression.of_name(name)
    except KeyError:
        raise ToolError(f"option {COMPRESSION!r} is none, gzip, snappy, lz4 or zstd, not {name!r}") from None


def _check_pattern(pattern: str) -> None:
    if not pattern:
        raise ToolError("option 'subscribePattern' is empty")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ToolError(f"option 'subscribePattern' {pattern!r}: {error}") from None


def _topics(found: Mapping[str, str]) -> Mapping[str, tuple[int, ...] | None]:
    if "subscribe" in found:
        names = [name.strip() for name in found["subscribe"].split(",") if name.strip()]
        if not names:
            raise ToolError("option 'subscribe' names no topic")
        return dict.fromkeys(names)
    if "assign" not in found:
        return {}
    chosen = _json("assign", found["assign"])
    if not (
        isinstance(chosen, dict)
        and chosen
        and all(isinstance(rows, list) and rows for rows in chosen.values())
        and all(_is_integer(one, 0, _INT32_MAX) for rows in chosen.values() for one in rows)
    ):
        raise ToolError("""option 'assign' is JSON like {"orders": [0, 1]}""")
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in chosen.items()}


def _position(found: Mapping[str, str], which: str) -> StartPosition | None:
    """The position that the options describe. As in the connector, there are three kinds of options. If
    several are given, the first of this list is used: one time for all partitions, times by partition,
    offsets.
    """
    or_latest = which == "ending"
    strategy = found.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ToolError(f"option 'startingOffsetsByTimestampStrategy' is error or latest, not {strategy!r}")
    or_latest = or_latest or strategy == "latest"
    if (name := f"{which}Timestamp") in found:
        text = found[name].strip()
        if not (text.isascii() and text.isdigit() and int(text) <= _INT64_MAX):
            raise ToolError(f"option {name!r} is milliseconds since 1970, not {text!r}")
        return Timestamps(everywhere=int(text), or_latest=or_latest)
    if (name := f"{which}OffsetsByTimestamp") in found:
        times = _by_partition(name, found[name], "1700000000000", lowest=0)
        return Timestamps(by_partition=times, or_latest=or_latest)
    name = f"{which}Offsets"
    if name not in found:
        return None
    text = found[name].strip()
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    return _by_partition(name, text, "-2", lowest=EARLIEST) if word is None else word


def _by_partition(name: str, text: str, value: str, *, lowest: int) -> OffsetsByTopic:
    example = f"""option {name!r} is JSON like {{"orders": {{"0": 23, "1": {value}}}}}"""
    if not text.strip().startswith("{"):
        raise ToolError(example)
    chosen = _json(name, text)
    rows = [
        row for one in chosen.values() for row in (one.items() if isinstance(one, dict) else [("", None)])
    ]
    if not all(
        part.isascii() and part.isdigit() and int(part) <= _INT32_MAX and type(offset) is int
        for part, offset in rows
    ):
        raise ToolError(example)
    if not all(_is_integer(offset, lowest, _INT64_MAX) for _, offset in rows):
        raise ToolError(f"option {name!r} has a number below {lowest}, or beyond 64 bits")
    return {
        topic: {int(part): offset for part, offset in partitions.items()}
        for topic, partitions in chosen.items()
    }


def _is_integer(value: Any, lowest: int, highest: int) -> bool:
    """Whether a JSON value is an integer, and not a fraction or a boolean."""
    return type(value) is int and lowest <= value <= highest


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ToolError(f"option {name!r} is not JSON: {text!r}") from None


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ToolError(f"option {name!r} is a positive number, not {text!r}")
    return int(text)


def _optional(name: str, found: Mapping[str, str]) -> int | None:
    return _count(name, found[name]) if name in found else None


def _duration_s(name: str, text: str) -> float:
    """Parse a duration in Spark's syntax: an integer and a unit. Without a unit it is in milliseconds."""
    match = re.fullmatch(r"([0-9]+)([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _TIME_UNITS_S:
        raise ToolError(f"option {name!r} is a time like 30s, 15m or 1h, not {text!r}")
    return int(match[1]) * _TIME_UNITS_S[match[2]]


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ToolError(f"option {name!r} is true or false, not {text!r}")
    return text.lower() == "true"
