"""Golden scripts: blocks of commands, ``----`` and their output, read and written by tests of the raft core.

``MOLDAU_REWRITE_GOLDEN=1 pytest tests/quorum`` rewrites the outputs.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raft_model import Entry

from moldau.quorum.core import effects as fx
from moldau.quorum.core import messages as msg
from moldau.quorum.core.election_state import ElectionState
from moldau.quorum.core.offsets import OffsetAndEpoch
from moldau.quorum.core.voters import ReplicaKey
from moldau.runtime import ErrorCode

REWRITE = os.environ.get("MOLDAU_REWRITE_GOLDEN") == "1"


def position(text: str) -> OffsetAndEpoch:
    """Read ``offset/epoch``."""
    offset, epoch = text.split("/")
    return OffsetAndEpoch(int(offset), int(epoch))


def numbers(text: str) -> list[int]:
    """Read ``1,2,3``. An empty text means an empty list."""
    return [int(number) for number in text.split(",") if number]


def show(value: Any, *, without: tuple[str, ...] = ()) -> str:
    """Return a dataclass as text: ``Name field=value``, without empty fields."""
    match value:
        case ErrorCode():
            return str(value.name)
        case ReplicaKey():
            return str(value.id)
        case Entry():
            return f"{value.epoch}"
        case tuple():
            return "[" + ",".join(show(item) for item in value) + "]"
        case OffsetAndEpoch() | ElectionState():
            return str(value)
    if hasattr(value, "__dataclass_fields__"):
        fields = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
        shown = [
            f"{name}={show(item)}"
            for name, item in fields
            if item not in (None, (), b"", False, msg.ANY_HIGH_WATERMARK)
            and name not in ("correlation_id", "max_bytes", "voter", *without)
        ]
        text = " ".join([type(value).__name__, *shown])
        return text if isinstance(value, fx.Effect) else f"({text})"
    return str(value)


def play(text: str, run: Callable[[str], str]) -> str:
    """The script in which the output of each block is replaced by the output of ``run`` for the block's
    commands."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        end = lines.index("----") if "----" in lines else len(lines)
        commands = lines[:end]
        output = [run(command) for command in commands if not command.startswith("#")]
        blocks.append("\n".join([*commands, "----", *output]))
    return "\n\n".join(blocks) + "\n"


def check_script(path: Path, run: Callable[[str], str]) -> None:
    """Run the script of a file and compare the outputs. If the variable ``MOLDAU_REWRITE_GOLDEN`` is set, the
    outputs are rewritten first."""
    actual = play(path.read_text(), run)
    if REWRITE:
        path.write_text(actual)
    assert actual == path.read_text()
