"""If a log cannot be cleaned, its name and the reason are reported."""

from typing import Any

import pytest
from cleaned_log import CleanedLog


def test_a_log_that_cannot_be_cleaned_is_noticed(box: Any) -> None:
    cleaned = CleanedLog(box)
    for number in range(30):
        cleaned.append([(b"a", b"%d" % number)])
    cleaned.log.roll()
    box.disk.names["/data/t-0/00000000000000000000.log"].data[70] ^= 1
    with pytest.raises(AssertionError):
        cleaned.clean()
    notice = cleaned.cleaner.notice()
    assert notice is not None
    assert notice.startswith("t-0 is not compacted until the node is restarted: ")


def test_a_log_that_is_cleaned_is_not_noticed(box: Any) -> None:
    cleaned = CleanedLog(box)
    cleaned.append([(b"a", b"1")])
    cleaned.log.roll()
    cleaned.clean()
    assert cleaned.cleaner.notice() is None
