"""A seed always results in the same history."""

import os
import subprocess
import sys

import pytest

from moldau.simulation import runner
from moldau.simulation.runner import main
from moldau.simulation.scenario import Result, Scenario, run_seed
from moldau.simulation.scenario_table import tiny


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


def test_a_story_that_raises_an_error_is_named_and_the_other_seeds_are_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = []

    def play(scenario: Scenario, seed: int) -> Result:
        played.append(seed)
        if seed == 8:
            raise IndexError("no such row")
        return run_seed(scenario, seed)

    monkeypatch.setattr(runner, "run_seed", play)
    assert main(["--node", "tiny", "--first", "7", "--seeds", "3"]) == 1
    assert played == [7, 8, 9]
    output = capsys.readouterr()
    assert output.out == "python -m moldau.simulation --node tiny --seed 8  # raised an error\n"
    assert "IndexError: no such row" in output.err
    assert "3 seeds, 1 failed" in output.err
