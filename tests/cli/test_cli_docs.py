import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from moldau.cli.app import command
from moldau.cli.docs import cli_page


def test_the_page_of_the_commands_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == cli_page(), "run: make docs"


def _examples():
    for block in re.findall(r"```sh\n(.*?)```", cli_page(), re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line.rpartition("| moldau ")[2] or line, comments=True)
            words = words[1:] if words[:1] == ["moldau"] else words
            yield [word for word in words if word != "&"]


@pytest.mark.parametrize("words", _examples(), ids=" ".join)
def test_every_example_uses_an_existing_command(words):
    if "ID=$(moldau" in words[0] or words[0] == "source":
        return
    found: Any = command()
    while hasattr(found, "get_command"):
        found = found.get_command(None, words.pop(0))
        assert found is not None
    with found.make_context("example", words):
        pass


def test_help_of_every_command_has_an_example(cli):
    page = cli_page()
    for title in re.findall(r"^### moldau (.*)$", page, re.MULTILINE):
        ran = cli(*title.split(), "--help")
        assert ran.code == 0
        assert re.search("Examples?:", ran.out), title


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_completed_in_each_shell(cli, shell, monkeypatch):
    ran = cli("completion", shell)
    assert ran.code == 0
    assert "_MOLDAU_COMPLETE" in ran.out
    monkeypatch.setenv("COMP_WORDS", "moldau topics de")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_MOLDAU_COMPLETE", "complete_bash")
    assert cli().out.split() == ["describe", "delete"]
