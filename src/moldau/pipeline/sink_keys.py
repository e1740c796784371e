"""Names of the objects that a sink stores in the store of the WAL. Pure.

A task writes ``sink/<query or job>/parts/<random>`` for its driver, and the driver removes it. Objects next
to the folder ``parts`` record the progress of a query's batches.
"""

from typing import Final
from uuid import UUID

SINK_PREFIX: Final = "sink"
PARTS: Final = "parts"


def part_key(query_id: str, id: UUID) -> str:
    """The key of a part. The key is unique for each attempt, because a task may run twice."""
    return f"{SINK_PREFIX}/{query_id}/{PARTS}/{id}"


def is_part(key: str) -> bool:
    """Whether an object is a part. The driver removes a part that it no longer needs."""
    names = key.split("/")
    return len(names) == 4 and names[0] == SINK_PREFIX and names[2] == PARTS
