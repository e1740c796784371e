"""The generated pages say what the code says."""

import pathlib
import subprocess
import sys

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
