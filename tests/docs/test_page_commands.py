"""Each command that the documentation shows exists and has the options that it is shown with. This includes
commands that no test runs, and commands in the text."""

import itertools
import re
import shlex

import pytest
from page_commands import (
    ROOT,
    WrongUsage,
    check_other,
    commands_in_indented_blocks,
    commands_in_text,
    commands_of,
    parse,
    parse_in_text,
)
from page_examples import blocks_of, pages

from moldau.cli.options import key_values
from moldau.server.settings import development_config

EVERYWHERE = [*pages(), "CHANGELOG.md"]


@pytest.mark.parametrize("page", EVERYWHERE)
def test_each_command_of_a_block_is_parsed(page: str) -> None:
    for block in blocks_of(page):
        if block.language != "sh":
            continue
        for words in commands_of(block.text):
            if words[0] == "moldau":
                parse(words)
                check_settings(words)
            else:
                check_other(words)


def check_settings(words: list[str]) -> None:
    """Check the properties that ``moldau dev`` and ``moldau node`` get on their command line."""
    if words[1] in ("dev", "node"):
        given = [value for option, value in itertools.pairwise(words) if option == "--set"]
        development_config("data", 9092, key_values(given, "--set"))


@pytest.mark.parametrize("page", EVERYWHERE)
def test_each_command_of_an_indented_block_is_parsed(page: str) -> None:
    for words in commands_in_indented_blocks(page):
        parse(words)
        check_settings(words)


def test_the_commands_of_indented_blocks_are_found() -> None:
    assert ["moldau", "brokers", "decommission", "3"] in commands_in_indented_blocks("docs/howto/brokers.md")


@pytest.mark.parametrize("page", EVERYWHERE)
def test_each_command_in_the_text_is_parsed(page: str) -> None:
    for words in commands_in_text(page):
        parse_in_text(words)


@pytest.mark.parametrize("page", EVERYWHERE)
def test_each_target_of_the_makefile_in_the_text_exists(page: str) -> None:
    for found in re.findall(r"`(make [^`…]*)`", (ROOT / page).read_text()):
        check_other(shlex.split(found))


@pytest.mark.parametrize(
    "wrong",
    [
        "moldau topic list",
        "moldau topics lst",
        "moldau dev --datas ./data",
        "moldau dev --port many",
        "moldau --data",
    ],
)
def test_a_wrong_command_is_found(wrong: str) -> None:
    for parsed in (parse, parse_in_text):
        with pytest.raises((AssertionError, WrongUsage)):
            parsed(wrong.split())


def test_a_command_without_its_argument_is_wrong_only_in_a_block() -> None:
    words = ["moldau", "topics", "describe", "--timeout"]
    parse_in_text(words)
    with pytest.raises(WrongUsage):
        parse(words)


@pytest.mark.parametrize("wrong", ["make everything", "python -m bench.nothing", "python tools/nothing.py"])
def test_a_wrong_target_module_or_script_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_other(wrong.split())
