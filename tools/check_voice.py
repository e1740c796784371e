"""List violations of the glossary's advice (docs/glossary.md) as warnings. Read the warnings, but their
number need not be zero.

The check lists docstrings with a vague beginning, words that have a simpler synonym, folders with too many
files, and small files that belong into the only file that imports them. A name of a class or a type alias
with two meanings is an error, and the exit code is then 1.
"""

import ast
import collections
import fnmatch
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("src/moldau", "src/pyspark_moldau")
GENERATED = "src/moldau/protocol/messages/"
"""The folder of the generated messages. Nested types of several messages may have the same name there,
because the names are Kafka's own."""
FOLDER_FILES = {"src": 15, "bench": 20, "tests": 20}
"""Number of files in a folder from which sub-folders are better. ``__init__.py`` does not count."""
SMALL_FILE_LINES = 40
FAMILIES = {
    "src/moldau/cluster/decisions/*.py": "one file for each subject of the controller's decisions",
    "src/moldau/cluster/image/parts/*.py": "one file for each part of the metadata image",
    "src/moldau/coordinators/*/hosted.py": "one file for each kind of coordinator",
    "src/moldau/protocol/own/*.py": "one file for each API of Moldau",
}
"""Patterns of files that are members of a regular set, with the rule of the set. Such a file may be small. In
a pattern, ``*`` also matches the names of several folders."""

BUILTIN_TYPES = {"bool", "bytearray", "bytes", "dict", "float", "int", "list", "memoryview", "str", "tuple"}
GENERICS = {
    *("Annotated", "Awaitable", "Callable", "Collection", "Coroutine", "Generator", "Iterable", "Iterator"),
    *(
        "Literal",
        "Mapping",
        "MutableMapping",
        "PersistentMap",
        "Sequence",
        "dict",
        "frozenset",
        "list",
        "set",
    ),
    *("tuple", "type"),
}
"""Names of generic types. The assignment of such a type with its arguments is a type alias."""

RIDDLE = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|The same|Those|Nobody|Somebody)\b")
WORDS = {
    "for to": "to",
    "of late": "recently, over the last minute",
    "at hand": "in memory, available",
    "by and by": "later",
    "for good": "permanently",
    "in so many words": "explicitly",
    "nobody": "no client, no other code, never",
    "somebody": "a client, another program",
    "somebody else's": "a plug-in's",
    "tidy": "reconcile",
    "sweep": "collect, garbage-collect",
    "judge": "check",
    "strays": "orphans, stray folders",
    "surroundings": "dependencies, context",
    "whoever": "the caller, the reader",
    "nobody is at": "with no … in progress",
    "is put in order": "is reconciled",
    "in the night before": "a date",
}
"""Words that docstrings and comments should not contain, with better words."""
NAMES = {
    "judge": "check",
    "look": "find, read, search",
    "standing": "status",
    "surroundings": "dependencies, context",
    "sweep": "collect, garbage-collect",
    "take": "a verb that names the taken thing",
    "tell": "notify, report",
    "tidy": "reconcile",
}
"""Names that functions and classes should not have, with better names. In longer names, such as
``take_snapshot``, the next words may make the meaning clear."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, including docstrings of variables."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        before: ast.stmt | None = None
        for statement in node.body:
            match statement:
                case ast.Expr(ast.Constant(str() as text)) if before is None or isinstance(
                    before, ast.Assign | ast.AnnAssign
                ):
                    yield statement.lineno, text.strip()
            before = statement


def comments(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def riddles(name: str, source: str) -> Iterator[str]:
    """Docstrings of a module that begin without a clear subject, and words in docstrings, comments and names
    that have a simpler synonym."""
    for line, text in docstrings(ast.parse(source)):
        if RIDDLE.match(text):
            yield f"{name}:{line}: begins with a riddle: {text.splitlines()[0]}"
        yield from _words(f"{name}:{line}", text)
    for line, text in comments(source):
        yield from _words(f"{name}:{line}", text)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            better = NAMES.get(node.name.strip("_").lower())
            if better is not None:
                yield f"{name}:{node.lineno}: {node.name!r}: write {better}"


def _words(place: str, text: str) -> Iterator[str]:
    for word, better in WORDS.items():
        if re.search(rf"\b{word}\b", text, re.IGNORECASE):
            yield f"{place}: {word!r}: write {better}"


def crowded_folders(names: Iterable[str]) -> Iterator[str]:
    """Folders that have many files. ``names`` are file names. Generated messages do not count."""
    counts = collections.Counter(
        name.rpartition("/")[0]
        for name in names
        if not name.startswith(GENERATED) and not name.endswith("/__init__.py")
    )
    for folder, count in sorted(counts.items()):
        if count > FOLDER_FILES[folder.partition("/")[0]]:
            yield f"{folder} has {count} files: are there sub-rooms in it?"


def imported_files(source: str, files: Collection[str]) -> set[str]:
    """The files of ``files`` that a module imports. Imports must be absolute."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str() as module, level=0):
                names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return {path for name in names if (path := f"src/{name.replace('.', '/')}.py") in files}


def small_files(sources: Mapping[str, str]) -> Iterator[str]:
    """Small files that only one other file imports. The keys of ``sources`` are file names.

    The files of a package's interface (``__init__.py``), entry points and files of ``FAMILIES`` may be small.
    A file that no other file imports is an entry point. A file that the interface of its package imports is
    available to all importers of the package.
    """
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for name, source in sources.items():
        for imported in imported_files(source, sources) - {name}:
            importers[imported].add(name)
    for name, source in sorted(sources.items()):
        lines, found = source.count("\n"), importers[name]
        is_whole = name.endswith(("/__init__.py", "/__main__.py")) or any(
            fnmatch.fnmatch(name, pattern) for pattern in FAMILIES
        )
        if lines >= SMALL_FILE_LINES or is_whole or len(found) != 1:
            continue
        (importer,) = found
        if not importer.endswith("/__init__.py"):
            yield f"{name} has {lines} lines, and only {importer} imports it: can it join a file of its noun?"


def type_names(name: str, source: str) -> Iterator[tuple[str, str]]:
    """Classes and type aliases of a module without leading underscores, with their places. ``_Peer`` and
    ``Peer`` are therefore one name."""
    body = ast.parse(source).body
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        match node:
            case ast.ClassDef(name=one):
                pass
            case ast.AnnAssign(target=ast.Name(one), annotation=ast.Name("TypeAlias")):
                pass
            case ast.Assign(targets=[ast.Name(one)], value=value) if _is_type(value, classes):
                pass
            case _:
                continue
        yield one.lstrip("_"), f"{name}:{node.lineno}"


def _is_type(value: ast.expr, classes: Collection[str]) -> bool:
    """Whether an expression is certainly a type: a generic type with its arguments, or a union."""
    match value:
        case ast.Subscript(value=ast.Name(name)):
            return name in GENERICS
        case ast.BinOp(left, ast.BitOr(), right):
            return _is_operand(left, classes) and _is_operand(right, classes)
    return False


def _is_operand(value: ast.expr, classes: Collection[str]) -> bool:
    """Whether an operand of ``|`` looks like a type. Names of flags and sets look different."""
    match value:
        case ast.Constant(value=None):
            return True
        case ast.Name(name):
            return name in classes or name in BUILTIN_TYPES or (not name.isupper() and name[:1].isupper())
    return _is_type(value, classes)


def findings() -> tuple[list[str], list[str]]:
    """Errors about names, and warnings. The warnings about docstrings come first."""
    warnings: list[str] = []
    places: dict[str, list[str]] = collections.defaultdict(list)
    sources: dict[str, str] = {}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, source = str(path.relative_to(ROOT)), path.read_text()
            if name.startswith(GENERATED):
                continue
            sources[name] = source
            warnings += riddles(name, source)
            for one, place in type_names(name, source):
                places[one].append(place)
    warnings += crowded_folders(
        str(path.relative_to(ROOT)) for root in FOLDER_FILES for path in (ROOT / root).rglob("*.py")
    )
    warnings += small_files(sources)
    return list(double_names(places)), warnings


def double_names(places: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Names of classes and type aliases that are used for two different things, with the places of both."""
    for one, found in sorted(places.items()):
        if len(found) > 1:
            yield f"type {one} has {len(found)} meanings: {', '.join(found)}"


def main() -> int:
    errors, warnings = findings()
    for each in errors:
        print(f"error: {each}")
    for each in warnings:
        print(f"warning: {each}")
    print(f"{len(warnings)} warnings about words, folders and small files (docs/glossary.md)")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
