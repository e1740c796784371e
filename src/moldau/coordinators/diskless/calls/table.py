"""All calls of diskless coordinators, by API key."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from moldau.coordinators.diskless.calls import changes, commit, describing, files, reading, transactions
from moldau.coordinators.diskless.calls.declaration import DisklessCall

CALLS: Final[Mapping[int, DisklessCall[Any, Any]]] = MappingProxyType(
    {
        call.api_key: call
        for call in (
            changes.CREATE_PARTITIONS,
            changes.DELETE_TOPICS,
            commit.COMMIT_FILE,
            changes.DELETE_RECORDS,
            reading.LIST_OFFSETS,
            reading.FIND_BATCHES,
            files.DESCRIBE_FILES,
            files.OLDEST_FILE,
            files.CLOSE_FILES,
            files.HAND_OVER,
            changes.PRUNE,
            describing.DESCRIBE_TOPICS,
            describing.DESCRIBE_COORDINATOR,
            transactions.GUARD_TRANSACTIONS,
            transactions.END_TRANSACTIONS,
        )
    }
)
