"""Transactions append to lists of classic, diskless and tiered topics, and read the lists. The nodes of the
cluster are processes that are killed in the meantime."""

from pathlib import Path

import pytest
from list_kills import run

pytestmark = pytest.mark.real_time

SECONDS = 20.0


def test_lists_agree_with_the_outcomes_over_kills(tmp_path: Path) -> None:
    assert run(tmp_path, SECONDS, seed=1) == []
