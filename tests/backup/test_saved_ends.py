"""A deletion waits until the record that caused the deletion is saved. It also waits until all other logs are
saved at least up to the moment at which this record was written."""

import uuid

from moldau.backup.saved_ends import SavedEnds
from moldau.protocol.partitions import PartitionKey

LOG = PartitionKey(uuid.UUID(int=1), 0)


def test_nothing_is_covered_before_a_cut() -> None:
    saved = SavedEnds()
    assert not saved.covers(LOG, 0)
    saved.note(LOG, -1, 0)
    assert not saved.covers(LOG, 1)


def test_a_record_is_covered_when_another_round_has_followed_its_cut() -> None:
    saved = SavedEnds()
    saved.note(LOG, 10, 1)
    assert not saved.covers(LOG, 10)
    saved.note(LOG, 10, 1)  # the round was repeated after a failure
    assert not saved.covers(LOG, 10)
    saved.note(LOG, 15, 2)
    assert saved.covers(LOG, 10)
    assert not saved.covers(LOG, 11)


def test_another_maker_counts_its_rounds_from_the_start() -> None:
    saved = SavedEnds()
    saved.note(LOG, 10, 5)
    saved.note(LOG, 10, 0)
    assert not saved.covers(LOG, 10)
    saved.note(LOG, 12, 1)
    assert saved.covers(LOG, 10)


def test_a_log_that_lost_records_is_covered_no_further_than_its_cut() -> None:
    saved = SavedEnds()
    saved.note(LOG, 10, 1)
    saved.note(LOG, 10, 2)
    saved.note(LOG, 4, 3)
    assert saved.covers(LOG, 4)
    assert not saved.covers(LOG, 5)
