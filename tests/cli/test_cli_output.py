"""The format of tables on a terminal, and in files and pipes."""

import io
import re
import sys

import pytest

from moldau.cli.output import print_table

COLUMNS = ("Topic", "Partition", "High watermark")
ROWS = [("orders", 0, 12), ("a-topic-with-a-long-name", 1, None)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("width", "is_drawn"), [(1, False), (20, False), (54, False), (55, True), (200, True)]
)
def test_a_table_is_drawn_only_if_it_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, *, is_drawn: bool
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    text = re.sub("\x1b\\[[0-9;]*m", "", shown.getvalue())
    assert ("─" in text) == is_drawn
    lines = [line.split() for line in text.splitlines() if line.strip() and "─" not in line]
    assert [line for line in lines if line[-1] == "12"] == [["orders", "0", "12"]]
    assert [line for line in lines if line[-1] == "-"] == [["a-topic-with-a-long-name", "1", "-"]]
    assert " ".join(lines[0]).lower() == "topic partition high watermark"


def test_no_output_is_written_to_a_closed_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    print_table(COLUMNS, ROWS)
