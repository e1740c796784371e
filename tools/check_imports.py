"""Fail if modules import each other in a circle, if a module of the server imports too many other modules of
the server, or if a kind of coordinator imports another kind.

Imports that are needed only for types count, too. The only exception is a circle of such imports between
modules of the same group in ``CIRCLES_OF_TYPES``. See docs/decisions/0021-circles-of-types.md.
"""

import graphlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import grimp

PACKAGE: Final = "moldau"
CIRCLES_OF_TYPES: Final = (
    (
        "moldau.quorum.core.raft",
        "moldau.quorum.core.requests",
        "moldau.quorum.core.roles",
        "moldau.quorum.core.votes",
    ),
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
"""Groups of modules that may import each other's types. The name of a package includes all modules in this
package."""
SERVER: Final = "moldau.server"
SERVER_IMPORTS_MAX: Final = 14
COMPOSITION: Final = "moldau.server.composition"
"""Only this module may import all subsystems."""

COORDINATORS: Final = "moldau.coordinators"
"""Each package in this package is a kind of coordinator."""

Imports = Mapping[str, frozenset[str]]


def imports(*, with_types: bool) -> Imports:
    """The imports of each module of the package.

    Each kind of graph has its own cache folder. A cache stores the times of the files that were read. If two
    kinds shared a folder and only one kind had read the changed files, the cache would seem to be current for
    the other kind, too.
    """
    kind = "all" if with_types else "running"
    graph = grimp.build_graph(
        PACKAGE,
        exclude_type_checking_imports=not with_types,
        cache_dir=f".import_linter_cache/{kind}",
    )
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def circle_in(graph: Imports) -> list[str] | None:
    """The modules of a circle, in which each module is imported by the next module. None if there is no
    circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return None


def is_in(module: str, group: Iterable[str]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in group)


def joined(graph: Imports, groups: Iterable[tuple[str, ...]]) -> Imports:
    """The import graph in which each group is one module. Its name is the name of the group's
    first module."""
    name_of = {name: name for name in graph}
    for group in groups:
        name_of |= {name: group[0] for name in graph if is_in(name, group)}
    found: dict[str, set[str]] = {}
    for name, imported in graph.items():
        others = {name_of[each] for each in imported} - {name_of[name]}
        found.setdefault(name_of[name], set()).update(others)
    return {name: frozenset(imported) for name, imported in found.items()}


def related_kinds(typed: Imports) -> Iterator[str]:
    """One line for each import between two kinds of coordinators."""
    packages = {name.rpartition(".")[0] for name in typed}
    kinds = {name for name in packages if name.rpartition(".")[0] == COORDINATORS}
    for name, imported in typed.items():
        own = next((kind for kind in kinds if is_in(name, [kind])), None)
        if own is not None:
            others = (each for each in sorted(imported) if is_in(each, kinds - {own}))
            yield from (
                f"{name} imports {each}: kinds of coordinators do not know each other" for each in others
            )


def findings(typed: Imports, executed: Imports) -> Iterator[str]:
    """One line for each violation. ``typed`` also contains imports that are needed only for types."""
    if (circle := circle_in(executed)) is not None:
        yield f"circle of imports: {' <- '.join(circle)}"
    elif (circle := circle_in(joined(typed, CIRCLES_OF_TYPES))) is not None:
        yield f"circle of imports for types: {' <- '.join(circle)}"
    for group in CIRCLES_OF_TYPES:
        inner = {name: imported for name, imported in typed.items() if is_in(name, group)}
        if circle_in(inner) is None:
            yield f"no circle of types any more, take it out of the list: {', '.join(group)}"
    yield from related_kinds(typed)
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
