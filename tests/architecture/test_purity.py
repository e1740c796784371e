"""If the docstring of a module says that the module is pure, ``tools/check_imports.py`` checks its
imports."""

from types import ModuleType


def test_a_pure_module_imports_nothing_impure(check_imports: ModuleType) -> None:
    imported = {
        "moldau.a": frozenset({"asyncio", "struct"}),
        "moldau.b": frozenset({"asyncio"}),
        "moldau.protocol.generate": frozenset({"pathlib"}),
        "asyncio": frozenset({"socket"}),
    }
    found = list(check_imports.impurities(imported, lambda name: name != "moldau.b"))
    assert found == ["moldau.a says that it is pure, and imports asyncio"]


def test_a_module_is_pure_if_its_docstring_or_its_packages_docstring_says_so(
    check_imports: ModuleType,
) -> None:
    assert check_imports.says_pure("moldau.quorum.core.raft")
    assert check_imports.says_pure("moldau.coordinators.transactions.shard")
    assert check_imports.says_pure("moldau.cluster.decisions.kinds.diskless"), "in its second paragraph"
    assert not check_imports.says_pure("moldau.coordinators.transactions.service")


def test_the_graph_contains_imports_of_libraries(check_imports: ModuleType) -> None:
    everything = check_imports.imports(with_types=True, external=True)
    assert "asyncio" in everything["moldau.coordinators.shard_host"]
    held = [name for name in everything if name.startswith("moldau.") and check_imports.says_pure(name)]
    assert len(held) > 200


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
