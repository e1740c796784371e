"""List code that may have too many subjects, as warnings. Read the warnings, but their number need not be
zero, and the exit code is always 0.

The number of collaborators and concepts says more than the number of lines. A class with many attributes, a
constructor with many parameters, and a long chain of base classes have several subjects, also if each of
their files is short. So do not divide code only because it is long. Divide it if its parts have names of
their own.

Generated files are not checked. Their first line says that they are generated.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

ROOT: Final = pathlib.Path(__file__).resolve().parent.parent
FOLDERS: Final = ("src", "bench", "tools", "examples")
FILE_LINES: Final = 500
INTERFACE_LINES: Final = 150
"""An ``__init__.py`` is the interface of a package. If it has more lines, it probably has code that belongs
into a module with a name."""
FUNCTION_LINES: Final = 60
PARAMETERS: Final = 7
ATTRIBUTES: Final = 25
BASES: Final = 2
GENERATED_MARK: Final = "# Generated"


def long_code(name: str, text: str, tree: ast.Module) -> Iterator[str]:
    """A file or function with many lines."""
    lines = text.count("\n")
    if name.endswith("__init__.py") and lines > INTERFACE_LINES:
        yield f"{name} has {lines} lines: does a part of it belong into a module with a name?"
    elif lines > FILE_LINES:
        yield f"{name} has {lines} lines: how many subjects does it have?"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES:
                yield f"{name}:{node.lineno}: {node.name} has {size} lines: how many steps does it have?"


def parameters(made: ast.ClassDef) -> int:
    """The number of parameters of a constructor, without ``self``. A class without ``__init__`` has none, so
    named tuples, data classes and messages do not count: their parameters are the fields of a value."""
    for node in made.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            return len(every) - 1
    return 0


def attributes(made: ast.ClassDef) -> int:
    """The number of attributes that the methods of a class set on ``self``. All methods count, because
    ``__init__`` may call other methods that set attributes."""
    return len(
        {
            node.attr
            for method in made.body
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    )


def base_names(made: ast.ClassDef) -> Iterator[str]:
    """The names of the base classes, without their modules and their type arguments."""
    for base in made.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        match expression:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def chain_of_bases(name: str, classes: Mapping[str, ast.ClassDef], above: Sequence[str] = ()) -> list[str]:
    """The longest chain of base classes of a class, beginning with the class itself. Only classes of this
    repository count. ``above`` are the classes whose base this class is."""
    above = [*above, name]
    bases = (base for base in base_names(classes[name]) if base in classes and base not in above)
    chains = (chain_of_bases(base, classes, above) for base in bases)
    return [name, *max(chains, key=len, default=[])]


def warnings(sources: Mapping[str, str]) -> Iterator[str]:
    """The warnings about all files. The keys of ``sources`` are file names. If several classes have the same
    name, a base class of this name means the first one."""
    trees = {name: ast.parse(text) for name, text in sources.items() if not text.startswith(GENERATED_MARK)}
    places: dict[str, str] = {}
    classes: dict[str, ast.ClassDef] = {}
    for file, tree in trees.items():
        yield from long_code(file, sources[file], tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                place = f"{file}:{node.lineno}: {node.name}"
                places.setdefault(node.name, place)
                classes.setdefault(node.name, node)
                if (count := parameters(node)) > PARAMETERS:
                    yield f"{place} is made of {count} arguments: do some of them belong together?"
                if (count := attributes(node)) > ATTRIBUTES:
                    yield f"{place} has {count} attributes: how many subjects does it have?"
    for one in classes:
        if len(chain := chain_of_bases(one, classes)) > BASES + 1:
            yield f"{places[one]} has too many classes above it ({' <- '.join(chain)}): can it use objects?"


def main() -> int:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    found = list(warnings(sources))
    for each in found:
        print(f"warning: {each}")
    print(f"{len(sources)} files, {len(found)} warnings about their size (CONTRIBUTING.md)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
