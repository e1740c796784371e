"""The forms of the records of ``__diskless_metadata`` belong to levels of ``moldau.diskless.version``. A
broker does not load a coordinator with a record of another form, so a new form needs a new level."""

from moldau.cluster.decisions.kinds.diskless import DISKLESS_LATEST
from moldau.protocol.records.diskless import RECORDS

ONE = dict.fromkeys(range(100, 110), "0") | {102: "0-1"}
"""The record types and the versions of their values at level 1. Type 109 has the ends of transactions."""
LEVELS = {1: ONE}


def test_a_new_form_of_a_record_needs_a_new_level() -> None:
    forms = {key.API_KEY: value.VERSIONS for key, value in RECORDS.pairs}
    assert forms == LEVELS[DISKLESS_LATEST]
