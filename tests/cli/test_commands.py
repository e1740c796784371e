"""Every command has a row in COMMANDS, and its help is written once."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import moldau.cli
from moldau.cli.commands import COMMANDS

ROOT = Path(moldau.cli.__file__).parent


def apps() -> Iterator[tuple[str, str, ast.Call]]:
    """Each module with an application, the application's name, and its call of ``new_app``."""
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            called, (target, *_) = node.value.func, node.targets
            if isinstance(called, ast.Name) and called.id == "new_app" and isinstance(target, ast.Name):
                yield module, target.id, node.value


def test_every_application_can_be_reached() -> None:
    rows = {row.module for row in COMMANDS.values()}
    found = {module for module, name, _ in apps() if name == "app"}
    assert found == rows, f"give each module a row in COMMANDS (cli/commands.py): {found ^ rows}"
    source = "".join((ROOT / f"{module.replace('.', '/')}.py").read_text() for module in rows)
    for module, name, _ in apps():
        assert name == "app" or f"add_typer({name}" in source, f"add {name} of {module} to a command"


@pytest.mark.parametrize("module", sorted(row.module for row in COMMANDS.values()))
def test_the_help_of_a_group_is_in_its_row(module: str) -> None:
    (call,) = (call for found, name, call in apps() if (found, name) == (module, "app"))
    assert "help" not in {keyword.arg for keyword in call.keywords}


def test_a_group_shows_the_help_of_its_row(cli) -> None:
    assert COMMANDS["quorum"].help in cli("quorum", "--help").out
