"""A seed always results in the same history."""

import os
import subprocess
import sys

import pytest

from moldau.simulation.nodes import tiny
from moldau.simulation.runner import main
from moldau.simulation.scenario import run_seed


def test_a_seed_repeats_itself_and_another_differs() -> None:
    digests = [run_seed(tiny(), seed).digest for seed in (5, 6, 5, 6)]
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("node", ["tiny", "node", "node-disk"])
def test_the_hash_seed_changes_nothing(node: str) -> None:
    outputs = []
    for hash_seed in ("0", "4242"):
        command = [sys.executable, "-m", "moldau.simulation", "--node", node, "--seeds", "2", "--digest"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 2


def test_the_command_shows_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "tiny", "--seed", "3", "--digest"]) == 0
    output = capsys.readouterr().out
    assert "producer-0 ok 0 at" in output
    assert "seed 3 holds" in output
