"""Fail when modules import each other in a circle, or a module of the server imports too many others of the
server.

Imports for types alone count, too, except in the groups below: see docs/decisions/0021-circles-of-types.md.
"""

import graphlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import grimp

PACKAGE: Final = "moldau"
CIRCLES_OF_TYPES: Final = (
    ("moldau.quorum.core.raft", "moldau.quorum.core.requests", "moldau.quorum.core.roles"),
    (
        "moldau.simulation.world.clock",
        "moldau.simulation.world.host",
        "moldau.simulation.world.listening",
        "moldau.simulation.world.loop",
        "moldau.simulation.world.network",
        "moldau.simulation.world.transport",
        "moldau.simulation.world.workers",
        "moldau.simulation.world.world",
    ),
)
"""Modules, with those below them, that may import each other's types."""
SERVER: Final = "moldau.server"
SERVER_IMPORTS_MAX: Final = 14
COMPOSITION: Final = "moldau.server.composition"
"""The one module that may import all subsystems."""

Imports = Mapping[str, frozenset[str]]


def imports(*, with_types: bool) -> Imports:
    """By module of the package, the modules of the package that it imports."""
    graph = grimp.build_graph(
        PACKAGE, exclude_type_checking_imports=not with_types, cache_dir=".import_linter_cache"
    )
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def circle_in(graph: Imports) -> list[str] | None:
    """The modules of a circle, each imported by the next; None when there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def is_in(module: str, group: Iterable[str]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in group)


def joined(graph: Imports, groups: Iterable[tuple[str, ...]]) -> Imports:
    """The graph with each group as one module, named by its first."""
    name_of = {name: name for name in graph}
    for group in groups:
        name_of |= {name: group[0] for name in graph if is_in(name, group)}
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        others = {name_of[each] for each in imported} - {name_of[name]}
        found.setdefault(name_of[name], set()).update(others)
    return {name: frozenset(imported) for name, imported in found.items()}


def findings(typed: Imports, executed: Imports) -> Iterator[str]:
    """One line for each mistake. ``typed``: with the imports for types alone."""
    if (circle := circle_in(executed)) is not None:
        yield f"circle of imports: {' <- '.join(circle)}"
    elif (circle := circle_in(joined(typed, CIRCLES_OF_TYPES))) is not None:
        yield f"circle of imports for types: {' <- '.join(circle)}"
    for group in CIRCLES_OF_TYPES:
        inner = {name: imported for name, imported in typed.items() if is_in(name, group)}
        if circle_in(inner) is None:
            yield f"no circle of types any more, take it out of the list: {', '.join(group)}"
    for name, imported in typed.items():
        count = sum(is_in(each, [SERVER]) for each in imported)
        if is_in(name, [SERVER]) and count > SERVER_IMPORTS_MAX and name != COMPOSITION:
            yield f"{name} imports {count} modules of {SERVER} (at most {SERVER_IMPORTS_MAX})"


def main() -> int:
    typed = imports(with_types=True)
    found = list(findings(typed, imports(with_types=False)))
    print("\n".join(found) or f"{len(typed)} modules, no circle of imports")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
