"""Finds the commands that the documentation shows in blocks and in its text, and parses them without running
them."""

import contextlib
import functools
import itertools
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer._click import exceptions

from moldau.cli.app import command

ROOT = pathlib.Path(__file__).resolve().parents[2]
WrongUsage = exceptions.UsageError
PLACEHOLDERS = {"N": "1", "ID": "1"}
"""Words of the text that stand for a number."""
UNFINISHED = (exceptions.MissingParameter, exceptions.BadOptionUsage)
"""Errors that are allowed in the text, where a command may be named without its arguments, and an option
without its value."""


def commands_of(text: str) -> Iterator[list[str]]:
    """The commands of a shell block as lists of words, with the parts of a pipe one after another."""
    for line in text.replace("\\\n", " ").splitlines():
        assigned = re.fullmatch(r"\w+=\$\((.*)\)", line.strip())
        lexer = shlex.shlex(assigned[1] if assigned else line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        for is_separator, words in itertools.groupby(lexer, key=lambda word: set(word) <= set("|&;")):
            if not is_separator:
                yield list(words)


def commands_in_indented_blocks(page: str) -> Iterator[list[str]]:
    """Commands of ``moldau`` in the blocks of a page that have no fence. The lines of these blocks are
    indented."""
    for line in _without_fenced_blocks(page).splitlines():
        if re.match(r" {4,}moldau ", line):
            yield shlex.split(line)


def _without_fenced_blocks(page: str) -> str:
    text = (ROOT / page).read_text()
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def commands_in_text(page: str) -> Iterator[list[str]]:
    """Commands of ``moldau`` in the text of a page. ``a|b`` stands for two commands. A command that contains
    an ellipsis is not one command, so it is left out."""
    for found in re.findall(r"(?<!`)`(moldau\s[^`]*)`", _without_fenced_blocks(page)):
        if "…" in found:
            continue
        choices = [word.split("|") for word in shlex.split(found)]
        yield from (list(words) for words in itertools.product(*choices))


@functools.cache
def _root() -> Any:
    return command()


def parse(words: list[str]) -> None:
    """Parse ``moldau …``. Raises ``AssertionError`` or ``WrongUsage`` if the command line refuses it."""
    assert words[0] == "moldau", f"not a command of moldau: {words}"
    found, rest = _root(), words[1:]
    while hasattr(found, "get_command") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        inner = found.get_command(None, name)
        assert inner is not None, f"{name!r} of {shlex.join(words)!r} is not a command"
        found = inner
    if hasattr(found, "get_command") and rest:
        names = {name for parameter in found.params for name in parameter.opts}
        assert set(rest) <= names, f"not options of a group of commands: {rest}"
    elif not hasattr(found, "get_command"):
        with found.make_context(shlex.join(words), rest):
            pass


def parse_in_text(words: list[str]) -> None:
    """Parse a command of the text. It may lack arguments and the values of options."""
    with contextlib.suppress(UNFINISHED):
        parse([PLACEHOLDERS.get(word, word) for word in words])


def check_other(words: list[str]) -> None:
    """Check that a target of the makefile, a module or a script exists. Raises ``AssertionError``."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = [word for word in words[1:] if "=" not in word]
        assert set(asked) <= set(targets), f"not targets of the makefile: {asked}"
    elif words[0] in ("python", ".venv/bin/python"):
        if words[1] == "-m":
            path = words[2].replace(".", "/")
            assert any((ROOT / path).with_suffix(end).exists() for end in ("", ".py")), (
                f"no module {words[2]}"
            )
        else:
            assert (ROOT / words[1]).exists(), f"no script {words[1]}"
