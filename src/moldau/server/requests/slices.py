"""Large requests in parts: the rows of a request cut into slices (``joining`` joins the answers to them).

A slice is a request of the same class with some of the rows. An API is in the table when each of its rows is
answered independently, so that the concatenated rows of the slices' answers are the answer to the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from moldau.protocol.api import ApiKey
from moldau.protocol.own.diskless import (
    close_files,
    create_partitions,
    delete_records,
    delete_topics,
    describe_files,
    list_offsets,
    prune,
)
from moldau.protocol.schema import Message

SLICE_ROWS: Final = 256
"""Rows answered without a break: some 10 ms of work at most."""


class Cut(NamedTuple):
    """The path to the rows of an API: fields from the outermost array to the innermost, and in the
    response.

    ``distinct`` leaves out rows that ask for the same as an earlier one: an answer may be many times as long
    as its row, so it is given once in the whole answer.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    rows: int = SLICE_ROWS
    distinct: Callable[[Sequence[Any]], Iterable[Any]] | None = None


def _distinct_groups(rows: Sequence[Any]) -> Iterator[Any]:
    """Groups; one whose offsets are all asked for appears once."""
    whole: set[str] = set()
    for row in rows:
        if row.topics is None:
            if row.group_id in whole:
                continue
            whole.add(row.group_id)
        yield row


def _distinct_resources(rows: Sequence[Any]) -> Iterable[Any]:
    found: dict[tuple[int, str], Any] = {}
    for row in rows:
        found.setdefault((row.resource_type, row.resource_name), row)
    return found.values()


def _distinct_partitions(rows: Sequence[Any]) -> Iterator[Any]:
    """Topics with indexes of partitions, each of them once."""
    topics: dict[str, dict[int, None]] = {}
    for row in rows:
        topics.setdefault(row.name, {}).update(dict.fromkeys(row.partition_indexes))
    for row in rows:
        indexes = topics.pop(row.name, None)
        if indexes is not None:
            yield replace(row, partition_indexes=list(indexes))


_PARTITIONS = Cut(("topics", "partitions"), ("topics", "partitions"))

CUTS: Final[Mapping[int, tuple[Cut, ...]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (Cut(("topic_data", "partition_data"), ("responses", "partition_responses")),),
        ApiKey.METADATA: (Cut(("topics",), ("topics",), distinct=dict.fromkeys),),
        # Each row is a task of its own.
        ApiKey.LIST_OFFSETS: (_PARTITIONS._replace(rows=128),),
        ApiKey.WRITE_TXN_MARKERS: (
            Cut(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), rows=128),
        ),
        ApiKey.OFFSET_COMMIT: (_PARTITIONS,),
        ApiKey.OFFSET_DELETE: (_PARTITIONS,),
        ApiKey.DELETE_RECORDS: (_PARTITIONS,),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (_PARTITIONS,),
        ApiKey.DESCRIBE_PRODUCERS: (
            Cut(("topics", "partition_indexes"), ("topics", "partitions"), distinct=_distinct_partitions),
        ),
        ApiKey.OFFSET_FETCH: (
            Cut(
                ("groups", "topics", "partition_indexes"),
                ("groups", "topics", "partitions"),
                distinct=_distinct_groups,
            ),
            Cut(("topics", "partition_indexes"), ("topics", "partitions")),
        ),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (Cut(("dirs", "topics", "partitions"), ("results", "partitions")),),
        # A group may have thousands of members, and a transaction thousands of partitions.
        ApiKey.DESCRIBE_GROUPS: (Cut(("groups",), ("groups",), rows=16, distinct=dict.fromkeys),),
        ApiKey.DESCRIBE_TRANSACTIONS: (
            Cut(("transactional_ids",), ("transaction_states",), rows=16, distinct=dict.fromkeys),
        ),
        ApiKey.DELETE_GROUPS: (Cut(("groups_names",), ("results",), distinct=dict.fromkeys),),
        ApiKey.FIND_COORDINATOR: (Cut(("coordinator_keys",), ("coordinators",)),),
        # One resource has more than a hundred keys.
        ApiKey.DESCRIBE_CONFIGS: (Cut(("resources",), ("results",), rows=8, distinct=_distinct_resources),),
        # FindBatches is not here: its answer waits for bytes of all its partitions together.
        create_partitions.REQUEST.API_KEY: (Cut(("topics",), ("topics",)),),
        delete_topics.REQUEST.API_KEY: (Cut(("topics",), ("responses",)),),
        delete_records.REQUEST.API_KEY: (_PARTITIONS,),
        list_offsets.REQUEST.API_KEY: (_PARTITIONS,),
        prune.REQUEST.API_KEY: (_PARTITIONS,),
        describe_files.REQUEST.API_KEY: (Cut(("files",), ("files",)),),
        close_files.REQUEST.API_KEY: (Cut(("object_keys",), ("files",)),),
    }
)

COSTLY_ROWS: Final = frozenset(
    key for key, cuts in CUTS.items() if any(cut.rows < SLICE_ROWS for cut in cuts)
)
"""APIs whose requests are sliced even when they are small, if they have several rows."""


MANY_ROWS: Final = 2_000
"""Rows of an answer that are encoded without a break: some 5 ms."""

_ANSWERS: Final[Mapping[int, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        ApiKey.METADATA: (("topics", "partitions"),),
        ApiKey.FETCH: (("responses", "partitions"),),
        ApiKey.OFFSET_FETCH: (("groups", "topics", "partitions"), ("topics", "partitions")),
        ApiKey.JOIN_GROUP: (("members",),),
        # A group may have thousands of members, and a transaction thousands of partitions.
        ApiKey.DESCRIBE_GROUPS: (("groups", "members"),),
        ApiKey.LIST_GROUPS: (("groups",),),
        ApiKey.DESCRIBE_LOG_DIRS: (("results", "topics", "partitions"),),
        ApiKey.DESCRIBE_PRODUCERS: (("topics", "partitions", "active_producers"),),
        ApiKey.DESCRIBE_TRANSACTIONS: (("transaction_states", "topics", "partitions"),),
        ApiKey.LIST_TRANSACTIONS: (("transaction_states",),),
    }
)
"""APIs whose answers may have many more rows than their requests."""


def has_many_rows(api_key: int, answer: Message) -> bool:
    """Whether a worker is to encode an answer."""
    return any(
        sum(_weight(row, fields[1:]) for row in getattr(answer, fields[0])) > MANY_ROWS
        for fields in _ANSWERS.get(api_key, ())
    )


def is_large(api_key: int, request: Message) -> bool:
    """Whether a request has more rows than are answered without a break."""
    cut = cut_of(api_key, request)
    if cut is None:
        return False
    return sum(_weight(row, cut.asked[1:]) for row in getattr(request, cut.asked[0])) > cut.rows


def cut_of(api_key: int, request: Message) -> Cut | None:
    """The slicing of a request: the array in this version of it; None when it is not sliced."""
    return next((cut for cut in CUTS.get(api_key, ()) if getattr(request, cut.asked[0])), None)


def slices(request: Any, cut: Cut) -> Iterator[Any]:
    """The request in parts, in order."""
    field = cut.asked[0]
    asked = getattr(request, field)
    for rows in _batches(asked if cut.distinct is None else cut.distinct(asked), cut.asked[1:], cut.rows):
        yield replace(request, **{field: rows})


def _batches(rows: Iterable[Any], inner: tuple[str, ...], most: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    weight = 0
    for row in rows:
        for piece, piece_weight in _pieces(row, inner, most):
            if batch and weight + piece_weight > most:
                yield batch
                batch, weight = [], 0
            batch.append(piece)
            weight += piece_weight
    if batch:
        yield batch


def _pieces(row: Any, inner: tuple[str, ...], most: int) -> Iterator[tuple[Any, int]]:
    """A row as it is, or, when it has too many rows in it, several times with some of them."""
    weight = _weight(row, inner)
    if weight <= most or not inner:
        yield row, weight
        return
    for rows in _batches(getattr(row, inner[0]), inner[1:], most - 1):
        piece = replace(row, **{inner[0]: rows})
        yield piece, _weight(piece, inner)


def _weight(row: Any, inner: tuple[str, ...]) -> int:
    if not inner:
        return 1
    rows = getattr(row, inner[0]) or ()
    if len(inner) == 1:
        return 1 + len(rows)
    return 1 + sum(_weight(each, inner[1:]) for each in rows)
