"""Golden scripts of the controller's decisions. The docstring of ``controller_script`` describes their
commands."""

import os
import pathlib

import pytest
from controller_script import ControllerScript

SCRIPTS = sorted((pathlib.Path(__file__).parent / "scripts").glob("*.txt"))


def play(text: str) -> str:
    """The script with the outputs that the current code produces."""
    script = ControllerScript()
    cases = []
    for case in text.strip("\n").split("\n\n"):
        commands = case.split("\n----")[0].split("\n")
        output = "".join(script.run(line) for line in commands if not line.startswith("#"))
        cases.append("\n".join(commands) + "\n----\n" + output)
    return "\n".join(cases)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_controller_decides_as_the_script_says(path: pathlib.Path) -> None:
    expected = path.read_text()
    actual = play(expected)
    if os.environ.get("GOLDEN_REWRITE"):
        path.write_text(actual)
    else:
        assert actual == expected
