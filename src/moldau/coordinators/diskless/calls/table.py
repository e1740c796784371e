"""All calls of diskless coordinators, by API key. The table has every call that a module in ``_SUBJECTS``
declares. Therefore a new call in such a module needs no change of this file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.coordinators.diskless.calls.subjects import (
    changes,
    commit,
    commit_parts,
    describing,
    files,
    reading,
    transactions,
)

_SUBJECTS: Final = (changes, commit, commit_parts, reading, files, describing, transactions)

CALLS: Final[Mapping[int, DisklessCall[Any, Any]]] = MappingProxyType(
    {
        call.api_key: call
        for subject in _SUBJECTS
        for call in vars(subject).values()
        if isinstance(call, DisklessCall)
    }
)
