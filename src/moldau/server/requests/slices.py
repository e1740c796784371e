"""Large requests in parts: the rows of a request cut into slices (``joining`` joins the answers to them).

A slice is a request of the same class with some of the rows. An API is in the table when each of its rows is
answered independently, so that the concatenated rows of the slices' answers are the answer to the whole.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    rows: int = SLICE_ROWS


_PARTITIONS = Cut(("topics", "partitions"), ("topics", "partitions"))

CUTS: Final[Mapping[int, tuple[Cut, ...]]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (Cut(("topic_data", "partition_data"), ("responses", "partition_responses")),),
        ApiKey.METADATA: (Cut(("topics",), ("topics",)),),
        # Each row is a task of its own.
        ApiKey.LIST_OFFSETS: (_PARTITIONS._replace(rows=128),),
        ApiKey.WRITE_TXN_MARKERS: (
            Cut(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), rows=128),
        ),
        ApiKey.OFFSET_COMMIT: (_PARTITIONS,),
        ApiKey.OFFSET_DELETE: (_PARTITIONS,),
        ApiKey.DELETE_RECORDS: (_PARTITIONS,),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (_PARTITIONS,),
        ApiKey.DESCRIBE_PRODUCERS: (Cut(("topics", "partition_indexes"), ("topics", "partitions")),),
        ApiKey.OFFSET_FETCH: (
            Cut(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
            Cut(("topics", "partition_indexes"), ("topics", "partitions")),
        ),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (Cut(("dirs", "topics", "partitions"), ("results", "partitions")),),
        ApiKey.DESCRIBE_GROUPS: (Cut(("groups",), ("groups",)),),
        ApiKey.DESCRIBE_TRANSACTIONS: (Cut(("transactional_ids",), ("transaction_states",)),),
        ApiKey.DELETE_GROUPS: (Cut(("groups_names",), ("results",)),),
        ApiKey.FIND_COORDINATOR: (Cut(("coordinator_keys",), ("coordinators",)),),
        # One resource has more than a hundred keys.
        ApiKey.DESCRIBE_CONFIGS: (Cut(("resources",), ("results",), rows=8),),
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

_ANSWERS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {ApiKey.METADATA: ("topics", "partitions"), ApiKey.FETCH: ("responses", "partitions")}
)
"""APIs whose answers may have many more rows than their requests."""


def has_many_rows(api_key: int, answer: Message) -> bool:
    """Whether a worker is to encode an answer."""
    fields = _ANSWERS.get(api_key)
    if fields is None:
        return False
    rows = getattr(answer, fields[0])
    return len(rows) + sum(len(getattr(row, fields[1])) for row in rows) > MANY_ROWS


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
    for rows in _batches(getattr(request, field), cut.asked[1:], cut.rows):
        yield replace(request, **{field: rows})


def _batches(rows: Sequence[Any], inner: tuple[str, ...], most: int) -> Iterator[list[Any]]:
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
