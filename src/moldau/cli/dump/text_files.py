"""The small text files of log folders: checkpoints, ids, the state of the quorum."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moldau.cli.dump.file_kind import DumpedFile, DumpRow, FileKind, by_name
from moldau.config.properties import parse_properties
from moldau.storage.folders.checkpoint import parse_checkpoint
from moldau.storage.folders.file_names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)


def _checkpoint(*columns: str) -> Callable[[DumpedFile], Iterator[DumpRow]]:
    def dump(file: DumpedFile) -> Iterator[DumpRow]:
        for words in parse_checkpoint(bytes(file.content), str(file.path), len(columns)):
            yield {"type": "entry", **dict(zip(columns, map(_number, words), strict=True))}

    return dump


def _number(word: str) -> int | str:
    return int(word) if word.removeprefix("-").isdigit() else word


def _properties(file: DumpedFile) -> Iterable[DumpRow]:
    return [{"type": "properties", **parse_properties(bytes(file.content).decode())}]


def _json(file: DumpedFile) -> Iterable[DumpRow]:
    if not file.content:
        return []
    fields: Any = json.loads(bytes(file.content))
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return [{"type": "state", **fields}]


OFFSET_CHECKPOINT = FileKind(
    "offset checkpoint",
    by_name(RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, "cleaner-offset-checkpoint"),
    _checkpoint("topic", "partition", "offset"),
)
LEADER_EPOCH_CHECKPOINT = FileKind(
    "leader epochs", by_name(LEADER_EPOCHS), _checkpoint("epoch", "start_offset")
)
PROPERTIES = FileKind("properties", by_name("meta.properties", PARTITION_METADATA), _properties)
JSON_STATE = FileKind("state", by_name("quorum-state", CLEAN_SHUTDOWN), _json)
