"""The demo, which is the first code that a new user runs."""

import pathlib
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
