"""Fail on ``given or Default()`` if an object of the class ``Default`` may be false.

A class with ``__len__`` or ``__bool__`` has such objects. If a caller gives an empty object, the default
replaces it. Write ``Default() if given is None else given`` instead.
"""

import ast
import pathlib
import sys
from collections.abc import Iterable, Iterator

ROOTS = ("src", "bench", "tests", "tools", "examples")


def sized_classes(trees: Iterable[ast.Module]) -> set[str]:
    """The names of the classes whose objects may be false."""
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if any(
            isinstance(part, ast.FunctionDef) and part.name in ("__len__", "__bool__") for part in node.body
        )
    }


def findings(trees: dict[str, ast.Module]) -> Iterator[str]:
    """One line for each default that may replace an empty object. The keys of ``trees`` are file names."""
    sized = sized_classes(trees.values())
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)):
                continue
            for value in node.values[1:]:
                if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in sized:
                    yield f"{name}:{node.lineno}: {ast.unparse(node)} loses an empty object"


def main() -> int:
    paths = sorted(path for root in ROOTS for path in pathlib.Path(root).rglob("*.py"))
    found = list(findings({str(path): ast.parse(path.read_text()) for path in paths}))
    print("\n".join(found) or f"{len(paths)} files, no default replaces an empty object")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
