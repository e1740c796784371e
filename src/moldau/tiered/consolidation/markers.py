"""Transaction markers in plans. A plan consists of runs. A run is a group of adjacent batches in an object,
or a single marker. If a run is a marker, it refers to no object, and its key contains the marker. Pure."""

from typing import Final

from moldau.coordinators.diskless.calls import TransactionEnd
from moldau.records.control import build_end_transaction_marker

_PREFIX: Final = "~marker:"
"""The prefix of a marker's key. Keys of objects never begin with this prefix."""


def key_of_marker(end: TransactionEnd, timestamp_ms: int) -> str:
    """The text that a plan contains for a marker. For other runs, the plan contains an object's key in place
    of this text."""
    producer_id, producer_epoch, coordinator_epoch, committed = end
    return f"{_PREFIX}{producer_id}:{producer_epoch}:{coordinator_epoch}:{int(committed)}:{timestamp_ms}"


def is_marker(key: str) -> bool:
    """Whether a run is a marker."""
    return key.startswith(_PREFIX)


def batch_of_marker(key: str) -> bytes:
    """The control batch of a marker, without its offset. Raises ``ValueError`` if the text does not describe
    a marker."""
    producer_id, producer_epoch, coordinator_epoch, committed, timestamp_ms = map(
        int, key.removeprefix(_PREFIX).split(":")
    )
    return build_end_transaction_marker(
        producer_id,
        producer_epoch,
        committed=bool(committed),
        coordinator_epoch=coordinator_epoch,
        timestamp=timestamp_ms,
    )
