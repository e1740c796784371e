"""List violations of the glossary's advice (docs/glossary.md) as warnings. Read the warnings, but their
number need not be zero.

The check lists docstrings with a vague beginning, words that have a simpler synonym, and folders with too
many files. A class name with two meanings is an error, and the exit code is then 1.
"""

import ast
import collections
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ("src/moldau", "src/pyspark_moldau")
GENERATED = "src/moldau/protocol/messages/"
"""The folder of the generated messages. Nested types of several messages may have the same name there,
because the names are Kafka's own."""
FOLDER_FILES = 15

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
    "whoever": "the caller, the reader",
    "somebody else's": "a plug-in's",
    "nobody is at": "with no … in progress",
    "is put in order": "is reconciled",
    "in the night before": "a date",
}


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


def riddles(name: str, source: str) -> Iterator[str]:
    """Docstrings of a module that begin without a clear subject, or use a word that has a simpler synonym."""
    for line, text in docstrings(ast.parse(source)):
        if RIDDLE.match(text):
            yield f"{name}:{line}: begins with a riddle: {text.splitlines()[0]}"
        for word, better in WORDS.items():
            if re.search(rf"\b{word}\b", text):
                yield f"{name}:{line}: {word!r}: write {better}"


def class_names(name: str, source: str) -> Iterator[tuple[str, str]]:
    """Classes of a module, with their places."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, f"{name}:{node.lineno}"


def findings() -> tuple[list[str], list[str]]:
    """Errors about names, and warnings. The warnings about docstrings come first."""
    warnings: list[str] = []
    places: dict[str, list[str]] = collections.defaultdict(list)
    files: collections.Counter[str] = collections.Counter()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, source = str(path.relative_to(ROOT)), path.read_text()
            if name.startswith(GENERATED):
                continue
            files[str(path.parent.relative_to(ROOT))] += path.name != "__init__.py"
            warnings += riddles(name, source)
            for one, place in class_names(name, source):
                places[one].append(place)
    for folder, count in sorted(files.items()):
        if count > FOLDER_FILES:
            warnings.append(f"{folder} has {count} files: are there sub-rooms in it?")
    return list(double_names(places)), warnings


def double_names(places: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Class names that are used for two different things, with the places of both."""
    for one, found in sorted(places.items()):
        if len(found) > 1:
            yield f"class {one} has {len(found)} meanings: {', '.join(found)}"


def main() -> int:
    errors, warnings = findings()
    for each in errors:
        print(f"error: {each}")
    for each in warnings:
        print(f"warning: {each}")
    print(f"{len(warnings)} warnings about words and folders (docs/glossary.md)")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
