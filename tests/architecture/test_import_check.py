"""``tools/check_imports.py`` finds circles of imports, and modules with too many or forbidden imports."""

import os
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def check(check_imports: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(check_imports, "CIRCLES_OF_TYPES", (("m.core", "m.role"),))
    return check_imports


def graph(**imported: str) -> dict[str, frozenset[str]]:
    """Make a graph of modules of the package ``m``. Each argument has the name of a module. Its value
    contains the names that this module imports, separated by blanks."""
    return {f"m.{name}": frozenset(f"m.{each}" for each in text.split()) for name, text in imported.items()}


EXECUTED = graph(core="role", role="", other="core")
TYPED = graph(core="role", role="core", other="core")


def test_a_listed_circle_of_types_is_accepted(check: ModuleType) -> None:
    assert list(check.findings(TYPED, EXECUTED)) == []


def test_a_listed_circle_is_refused_when_it_is_executed(check: ModuleType) -> None:
    (found,) = check.findings(TYPED, TYPED)
    assert found.startswith("circle of imports: m.")


def test_a_circle_of_types_that_is_not_listed_is_refused(check: ModuleType) -> None:
    (found,) = check.findings({**TYPED, "m.role": frozenset({"m.core", "m.other"})}, EXECUTED)
    assert found.startswith("circle of imports for types: m.")


def test_a_listed_group_without_a_circle_is_named(check: ModuleType) -> None:
    (found,) = check.findings(EXECUTED, EXECUTED)
    assert found == "no circle of types any more, take it out of the list: m.core, m.role"


def test_only_the_composition_may_import_many_modules_of_the_server(check: ModuleType) -> None:
    many = frozenset(f"moldau.server.m{number}" for number in range(check.SERVER_IMPORTS_MAX + 1))
    modules = {name: frozenset[str]() for name in many}
    hub = {"moldau.server.hub": many, "moldau.server.composition": many}
    assert list(check.findings({**TYPED, **modules, **hub}, EXECUTED)) == [
        f"moldau.server.hub imports {len(many)} modules of moldau.server (at most {check.SERVER_IMPORTS_MAX})"
    ]


def test_a_changed_module_is_read_again_for_each_kind_of_graph(
    check_imports: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "changing"
    package.mkdir()
    for name in ("__init__", "one", "two"):
        (package / f"{name}.py").write_text("")
    importer = package / "importer.py"
    importer.write_text("import changing.one\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_imports, "PACKAGE", "changing")
    for with_types in (False, True):
        check_imports.imports(with_types=with_types)
    importer.write_text("import changing.two\n")
    written_s = importer.stat().st_mtime + 10
    os.utime(importer, (written_s, written_s))
    for with_types in (False, True):
        found = check_imports.imports(with_types=with_types)
        assert found["changing.importer"] == {"changing.two"}


def test_kinds_of_coordinators_do_not_import_each_other(check_imports: ModuleType) -> None:
    typed = {
        "moldau.coordinators.one.shard": frozenset(
            {"moldau.coordinators.other.codec", "moldau.coordinators.kind"}
        ),
        "moldau.coordinators.one.codec": frozenset({"moldau.coordinators.one.shard"}),
        "moldau.coordinators.other.codec": frozenset[str](),
        "moldau.coordinators.kind": frozenset[str](),
    }
    (found,) = check_imports.related_kinds(typed)
    assert found.startswith("moldau.coordinators.one.shard imports moldau.coordinators.other.codec")
