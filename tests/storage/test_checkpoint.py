"""Kafka's text checkpoints."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.partitions import TopicPartition
from moldau.runtime import LocalDisk
from moldau.storage.folders.checkpoint import (
    CheckpointError,
    parse_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)
OFFSETS = st.dictionaries(
    st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=10
)


@pytest.mark.parametrize("content", [bytes(10**6), b"0\n" + b"9" * 10**6, b"0\n1\n" + b"x" * 10**6])
def test_a_long_line_is_not_quoted_whole(content: bytes) -> None:
    with pytest.raises(CheckpointError) as refused:
        parse_checkpoint(content, "path", 3)
    assert len(str(refused.value)) < 300


@given(OFFSETS)
def test_a_written_checkpoint_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[TopicPartition, int]
) -> None:
    path = str(tmp_path_factory.getbasetemp() / "recovery-point-offset-checkpoint")
    write_offset_checkpoint(LocalDisk(), path, offsets)
    assert read_offset_checkpoint(LocalDisk(), path) == offsets


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b.c-d", 12): 2**40}
    write_offset_checkpoint(LocalDisk(), str(path), offsets)
    assert path.read_text() == "0\n2\na 0 5\nb.c-d 12 1099511627776\n"


@pytest.mark.parametrize("content", [None, "", "0\n", "0\n0\n"])
def test_a_missing_or_empty_checkpoint_has_no_offsets(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "checkpoint"
    if content is not None:
        path.write_text(content)
    assert read_offset_checkpoint(LocalDisk(), str(path)) == {}


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("1\n0\n", 1, "version 1, expected 0"),
        ("zero\n", 1, "'zero' is not a number"),
        ("\n", 1, "'' is not a number"),
        ("0\nmany\n", 2, "'many' is not a number"),
        ("0\n2\na 0 5\n", 2, "2 entries announced, 1 found"),
        ("0\n1\na 0 5\nb 0 5\n", 2, "1 entries announced, 2 found"),
        ("0\n1\na 0\n", 3, "2 words, expected 3"),
        ("0\n2\na 0 5\n\n", 4, "0 words, expected 3"),
        ("0\n1\na 0 5x\n", 3, "'5x' is not a number"),
        ("0\n1\na -1 5\n", 3, "-1 is out of range"),
        ("0\n1\na 0 9223372036854775808\n", 3, "out of range"),
        ("0\n1\na 0 99999999999999999999999\n", 3, "is not a number"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    tmp_path: Path, content: str, line: int, reason: str
) -> None:
    path = tmp_path / "some-checkpoint"
    path.write_text(content)
    with pytest.raises(CheckpointError) as caught:
        read_offset_checkpoint(LocalDisk(), str(path))
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert reason in str(caught.value)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_raise_only_checkpoint_errors(content: bytes) -> None:
    rows: list[list[str]] = []
    with contextlib.suppress(CheckpointError):
        rows = parse_checkpoint(content, "file", 3)
    assert all(len(row) == 3 for row in rows)
