"""The demos, which are the first code that a new user runs."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_demo_loses_nothing_and_shows_its_bill() -> None:
    run = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=800
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for shown in ("killed", "only a cache", "In the object store", "The bill", "PUT"):
        assert shown in run.stdout
    for page in ("README.md", "docs/start.md"):
        assert missing_lines((ROOT / page).read_text(), run.stdout) == []


def test_the_demo_of_a_cluster_survives_three_kills() -> None:
    """SIGKILL ends the broker of the diskless coordinator, the active controller, and another broker."""
    run = subprocess.run(
        [sys.executable, "examples/demo.py", "--cluster", "--timeout", "400"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "After three kills in the middle" in run.stdout
    for killed in ("the diskless coordinator's broker", "the active controller", "another broker"):
        assert killed in run.stdout
    for topic in ("classic", "diskless", "tiered"):
        # Acknowledged and consumed are equal; nothing is missing, doubled or out of order.
        assert re.search(rf"{topic} +│ +([\d,]+) │ +\1 │ +0 │ +0 │ +0 ", run.stdout), run.stdout


def missing_lines(page: str, output: str) -> list[str]:
    """The lines of the page's ``text`` blocks that the output does not have in the same order. Numbers, and
    the width of columns, may differ."""
    rest = iter([shape(line) for line in output.splitlines()])
    shown = "\n".join(re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)).splitlines()
    assert shown
    return [line for line in shown if shape(line) not in rest]


def shape(line: str) -> str:
    """A line without its numbers, its indentation and the width of its columns."""
    line = re.sub(r"\d[\d,.]*", "0", line.strip())
    return re.sub(r" +", " ", re.sub("[━─]+", "━", line))


def test_another_line_is_not_the_output() -> None:
    output = "node 1 killed\n┏━━━━┓\n┃ 10 ┃\n"
    assert missing_lines("```text\nnode 1,234 killed\n┏━━━┓\n┃   7 ┃\n```\n", output) == []
    assert missing_lines("```text\nnode 1 ended\n```\n", output) == ["node 1 ended"]
    assert missing_lines("```text\n┃ 7 ┃\nnode 1 killed\n```\n", output) == ["node 1 killed"]
