"""Counts requests to the object store for each GiB that is produced or consumed. Requests are counted as a
provider bills them."""

from collections.abc import Callable, Sequence
from typing import Final

from moldau.diskless.reading.read_meters import FetchMeters
from moldau.metrics import Counter, Meters

__all__ = ["watch_bill"]

GIB: Final = 1 << 30
PRODUCING: Final = ("upload", "list", "delete")
CONSUMING: Final = ("fetch",)


def watch_bill(meters: Meters, fetched: FetchMeters) -> None:
    """Register the gauges ``moldau_diskless_Bill_RequestsPerGiBProduced{operation=…}`` and ``…Consumed``.
    They are 0 until the first byte is produced or consumed.

    Produced bytes are uploaded bytes. Consumed bytes are the bytes of Fetch responses for diskless topics.
    Requests and bytes are counted from the start of the node. Failed attempts of requests are included,
    because they are billed.
    """
    bill = meters.scoped("moldau.diskless", "Bill")
    uploaded = meters.scoped("moldau.diskless", "Writer").counter(
        "UploadBytesPerSec", "Bytes of objects that were uploaded."
    )
    sides: tuple[tuple[str, str, Sequence[str], Callable[[], float]], ...] = (
        (
            "RequestsPerGiBProduced",
            "Requests to the object store for each GiB that was uploaded.",
            PRODUCING,
            lambda: uploaded.value,
        ),
        (
            "RequestsPerGiBConsumed",
            "Requests to the object store for each GiB that consumers read.",
            CONSUMING,
            lambda: fetched.cache_hit_bytes.value + fetched.cold_bytes.value,
        ),
    )
    store = meters.scoped("moldau.objects", "ObjectStorage")
    for name, text, operations, moved_bytes in sides:
        for operation in operations:
            requests = store.counter(
                "RequestsPerSec", "Requests sent to the object store.", operation=operation
            )
            bill.gauge(name, _ratio(requests, moved_bytes), text, operation=operation)


def _ratio(requests: Counter, moved_bytes: Callable[[], float]) -> Callable[[], float]:
    def read() -> float:
        moved = moved_bytes()
        return requests.value / (moved / GIB) if moved else 0.0

    return read
