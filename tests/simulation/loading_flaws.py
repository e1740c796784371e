"""A defect that tests insert into the load of a coordinator."""

from collections.abc import Callable
from typing import Any

import pytest

from moldau.coordinators.loader import ShardLoader


def ignore_records(patch: pytest.MonkeyPatch, is_ignored: Callable[[Any, Any], bool]) -> None:
    """Coordinators that load their logs ignore the records for which ``is_ignored(loader, record)`` is true.
    All records are replayed one by one."""
    replay = ShardLoader._replay_record

    def replay_most(loader: Any, header: Any, entry: Any) -> None:
        if not is_ignored(loader, entry):
            replay(loader, header, entry)

    patch.setattr(ShardLoader, "_replay_run", lambda _loader, _cursor, _from_offset: None)
    patch.setattr(ShardLoader, "_replay_record", replay_most)
