"""A marker is parsed when it is checked, and is not parsed again when it is appended."""

from memory_disk import MemoryDisk

from moldau.records.batch import BatchHeader, parse_header
from moldau.records.builder import build_batch
from moldau.records.control import build_end_transaction_marker
from moldau.records.record import Record
from moldau.storage.log.append_info import AppendOrigin
from moldau.storage.log.config import LogConfig
from moldau.storage.log.log_producers import LogProducers

PRODUCER = 5


def _marker(*, committed: bool) -> tuple[BatchHeader, bytes]:
    batch = build_end_transaction_marker(
        PRODUCER, 0, committed=committed, coordinator_epoch=0, timestamp=1_700_000_000_000
    )
    return parse_header(batch), batch


def _open_transaction() -> LogProducers:
    producers = LogProducers(MemoryDisk(), "/t-0", LogConfig())
    batch = build_batch(
        [Record(0, 1_700_000_000_000, b"k", b"v", ())],
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    header = parse_header(batch)
    producers.check(header, batch, AppendOrigin.CLIENT)
    producers.appended(header, 0, batch)
    return producers


def test_a_marker_that_was_checked_but_not_appended_has_no_effect() -> None:
    producers = _open_transaction()
    producers.check(*_marker(committed=True), AppendOrigin.COORDINATOR)
    header, batch = _marker(committed=False)
    assert producers.appended(header, 1, batch) is not None, "the transaction is aborted"


def test_a_checked_marker_is_appended() -> None:
    for committed in (True, False):
        producers = _open_transaction()
        header, batch = _marker(committed=committed)
        producers.check(header, batch, AppendOrigin.COORDINATOR)
        assert (producers.appended(header, 1, batch) is None) == committed
