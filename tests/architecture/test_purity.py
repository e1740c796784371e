"""A module that calls itself pure is checked: the import contract in ``pyproject.toml`` must list it."""

import ast
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def pure_modules() -> list[str]:
    """The modules whose docstring says "Pure." in its first paragraph."""
    found = []
    for path in sorted((ROOT / "src/moldau").rglob("*.py")):
        if "messages" in path.parts:
            continue
        summary = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
        if re.search(r"\bPure[.:]", summary):
            found.append(str(path.relative_to(ROOT / "src").with_suffix("")).replace("/", "."))
    return found


def test_each_module_that_calls_itself_pure_is_in_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each["name"].startswith("A pure core")]
    listed = contract["source_modules"]
    missing = [
        name
        for name in pure_modules()
        if not any(name == one or name.startswith(f"{one}.") for one in listed)
    ]
    assert missing == []
    assert len(pure_modules()) > 20
