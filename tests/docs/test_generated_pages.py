"""The generated pages are up to date with the code."""

import pathlib
import subprocess
import sys

from moldau.quorum.core.transitions import LEGAL_MOVES

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_no_generated_page_is_stale() -> None:
    run = subprocess.run(
        [sys.executable, "tools/generate_docs.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_page_of_state_machines_has_every_move_of_the_quorum() -> None:
    page = (ROOT / "docs/architecture/states.md").read_text()
    for (source, target), when in LEGAL_MOVES.items():
        assert f"| {source.value} | {target.value} | {when} |" in page
