"""Fail if a pure module uses an event loop, a file, a socket, a clock, a thread or randomness, itself or
through the modules that it imports.

A module is pure if one of its docstrings says "Pure", or if the docstring of a package around it says so. A
pure module may import the libraries in ``LIBRARIES`` and other pure modules. It may also import a module that
does not say that it is pure, if this module obeys the same rule. An import that is needed only for types
counts, too. If a module imports a name from a module that imports this name from a third module, then only
the third module counts. So a name counts the same whether it is imported from the interface of its package or
from its own module.
"""

import ast
import builtins
import collections
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

SOURCES: Final = pathlib.Path(__file__).resolve().parents[1] / "src"
PACKAGE: Final = "moldau"


class Import(NamedTuple):
    """An import of a name from a module, or of the whole module if the name is empty."""

    module: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


LIBRARIES: Final = {
    **dict.fromkeys(
        ("abc", "collections", "contextlib", "dataclasses", "enum", "types", "typing"),
        "declarations and containers",
    ),
    **dict.fromkeys(
        ("array", "bisect", "functools", "heapq", "itertools", "math", "operator"), "computation in memory"
    ),
    **dict.fromkeys(
        ("base64", "crc32c", "cramjam", "difflib", "hashlib", "json", "re", "struct"),
        "computation on bytes and text in memory",
    ),
    "datetime": "times as values; CALLS has the functions that read the clock",
    "kio.schema.errors": "the enumeration of Kafka's error codes",
    "pyarrow": "types and arrays; CALLS has its functions for files",
    "pyspark.sql.datasource": "the classes of filters, which are values",
    "sys": "properties of the interpreter, such as the byte order; CALLS has the streams",
    "uuid": "ids as values; CALLS has the functions that make random ids",
}
"""The libraries that pure code may import, each with the reason. All other libraries count as impure.

Some are impure although a part of them is not: ``io`` and ``mmap`` open files, ``logging`` writes the log and
reads the clock, and ``importlib`` reads files. Pure code returns values, which other code logs.
"""
CALLS: Final = frozenset(
    {
        "builtins.input",
        "builtins.open",
        "builtins.print",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "pyarrow.OSFile",
        "pyarrow.csv",
        "pyarrow.dataset",
        "pyarrow.flight",
        "pyarrow.fs",
        "pyarrow.memory_map",
        "pyarrow.orc",
        "pyarrow.parquet",
        "sys.argv",
        "sys.exit",
        "sys.stderr",
        "sys.stdin",
        "sys.stdout",
        "uuid.getnode",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)
"""Impure parts of the built-in functions and of the libraries in ``LIBRARIES``."""
RANDOMNESS: Final = Import("moldau.runtime.entropy", "Entropy")
"""The only port that pure code may import. The caller passes the source of randomness, and a source with a
seed repeats its values."""
PORTS: Final = frozenset({"moldau.runtime.files.disk", "moldau.runtime.workers"})
"""The ports for files and threads. A module that says that it is pure may not import them itself. It may
import another module that uses a port only as an argument, for the sake of the pure functions there."""
EXCEPTIONS: Final = {
    ("moldau.diskless.writing.buffers.arenas", "mmap"): "allocates memory, without a file",
    ("moldau.protocol.codec", "importlib"): "loads the generated module of a message at its first use",
}
"""Pairs of a module and a library or module that it may import although this is not pure, each with the
reason."""
TOOLS: Final = frozenset({"moldau.protocol.generate"})
"""Tools inside a pure package. They need not be pure. They are in the same folder as the code that they
generate."""


def is_in(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def _dotted(node: ast.expr) -> tuple[str, list[str]]:
    """The name at the beginning of an expression such as ``a.b.c``, and the names of the attributes. The name
    is empty if the expression begins with something else."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else ""), attributes[::-1]


class Module:
    """The imports, uses and docstrings of a module."""

    def __init__(self, text: str, modules: Collection[str]) -> None:
        """``modules`` are the names of all modules of the package."""
        tree = ast.parse(text)
        self.docstring = ast.get_docstring(tree) or ""
        self.says_pure = _PURE.search(self.docstring) is not None
        self.imports: set[Import] = set()
        self.bound: dict[str, Import] = {}
        """The names that the module gets by its imports. After ``import a.b`` the name is ``a``."""
        attributes: list[tuple[str, list[str]]] = []
        called: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for each in node.names:
                        self.imports.add(Import(each.name))
                        first = each.name.partition(".")[0]
                        self.bound[each.asname or first] = Import(each.name if each.asname else first)
                case ast.ImportFrom(module=str() as module, level=0):
                    for each in node.names:
                        inner = f"{module}.{each.name}"
                        found = Import(inner) if inner in modules else Import(module, each.name)
                        self.imports.add(found)
                        self.bound[each.asname or each.name] = found
                case ast.Attribute():
                    attributes.append(_dotted(node))
                case ast.Call(func=ast.Name(id=name)):
                    called.add(name)
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.says_pure |= _PURE.search(ast.get_docstring(node) or "") is not None
        self.uses = {str(each) for each in self.imports}
        """The full names of the parts of libraries, and of the built-in functions, that the module uses."""
        self.uses |= {f"builtins.{name}" for name in called - self.bound.keys() if hasattr(builtins, name)}
        for first, rest in attributes:
            if first in self.bound:
                self.uses.add(".".join([str(self.bound[first]), *rest]))


class Sources:
    """The modules of a package. The keys of ``texts`` are module names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.modules = {name: Module(text, texts.keys()) for name, text in texts.items()}

    def imports(self, module: str) -> set[Import]:
        """The imports of a module. Each names the module that defines the imported name."""
        return {self._defined(found) for found in self.modules[module].imports}

    def _defined(self, found: Import) -> Import:
        seen = {found}
        while found.name and found.module in self.modules:
            further = self.modules[found.module].bound.get(found.name, found)
            if further in seen:
                break
            seen.add(further)
            found = further
        return found

    def says_pure(self, module: str) -> bool:
        """Whether a docstring of a module, or the docstring of a package around it, says that it is pure."""
        if self.modules[module].says_pure:
            return True
        while package := module.rpartition(".")[0]:
            module = package
            if module in self.modules and _PURE.search(self.modules[module].docstring):
                return True
        return False


_PURE: Final = re.compile(r"\bPure\b")


class Purity:
    """Knows for each module why it is not pure."""

    def __init__(self, sources: Sources, exceptions: Collection[tuple[str, str]] = ()) -> None:
        self._sources = sources
        self._exceptions = exceptions
        self.used: set[tuple[str, str]] = set()
        """The exceptions that are needed."""
        self.pure = {name for name in sources.modules if name not in TOOLS and sources.says_pure(name)}
        self._imports = {
            name: {each.module for each in sources.imports(name) if each != RANDOMNESS}
            for name in sources.modules
        }
        self._reasons = self._spread()

    def _spread(self) -> dict[str, str]:
        """A reason for each module that does not say that it is pure, and is not."""
        importers: dict[str, list[str]] = collections.defaultdict(list)
        for name in self._imports:
            for imported in self._imports[name]:
                importers[imported].append(name)
        reasons = {
            name: min(found)
            for name in self._sources.modules
            if name not in self.pure and (found := self._own_reasons(name))
        }
        todo = collections.deque(sorted(reasons))
        while todo:
            impure = todo.popleft()
            for name in sorted(importers[impure]):
                if name not in self.pure and name not in reasons and not self._is_excepted(name, impure):
                    reasons[name] = impure
                    todo.append(name)
        return reasons

    def _own_reasons(self, module: str) -> set[str]:
        libraries = (name for name in self._imports[module] if name not in self._sources.modules)
        impure = {name for name in libraries if not is_in(name, LIBRARIES)}
        impure = {name for name in impure if not self._is_excepted(module, name)}
        return impure | (self._sources.modules[module].uses & CALLS)

    def _is_excepted(self, module: str, imported: str) -> bool:
        if (module, imported) not in self._exceptions:
            return False
        self.used.add((module, imported))
        return True

    def findings(self) -> Iterator[str]:
        """One line for each impure thing that a pure module imports or calls, and for each exception that is
        not needed."""
        for name in sorted(self.pure):
            for reason in sorted(self._own_reasons(name) | (self._imports[name] & PORTS)):
                yield f"{name} says that it is pure, but uses {reason}"
            for imported in sorted(self._imports[name] & self._reasons.keys()):
                if not self._is_excepted(name, imported):
                    yield f"{name} says that it is pure, but imports {' -> '.join(self._chain(imported))}"
        for module, imported in sorted(set(self._exceptions) - self.used):
            yield f"{module} is pure without its exception for {imported}: remove it from EXCEPTIONS"

    def _chain(self, module: str) -> Iterator[str]:
        """The imports that lead from an impure module to the reason."""
        while module in self._reasons:
            yield module
            module = self._reasons[module]
        yield module


def read_sources() -> Sources:
    """The modules of the package in this repository."""
    texts = {}
    for path in sorted((SOURCES / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        texts[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return Sources(texts)


def main() -> int:
    purity = Purity(read_sources(), EXCEPTIONS)
    found = list(purity.findings())
    print("\n".join(found) or f"{len(purity.pure)} pure modules")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
