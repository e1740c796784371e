"""If a docstring of a module says that the module is pure, ``tools/check_purity.py`` checks its imports and
calls."""

from types import ModuleType

import pytest

PURE = '"""Computes. Pure."""\n'
OTHER = '"""Works."""\n'


def found(check_purity: ModuleType, *exceptions: tuple[str, str], **texts: str) -> list[str]:
    """The findings for modules of the package ``m``."""
    sources = check_purity.Sources({f"m.{name}": text for name, text in texts.items()})
    return list(check_purity.Purity(sources, exceptions).findings())


@pytest.mark.parametrize(
    "library",
    ["asyncio", "importlib", "io", "logging", "mmap", "os", "random", "socket", "threading", "time"],
)
def test_a_pure_module_imports_no_impure_library(check_purity: ModuleType, library: str) -> None:
    for line in (f"import {library}", f"from {library} import anything", f"import {library}.part as p"):
        assert found(check_purity, a=f"{PURE}import struct\n{line}\n", b=f"{OTHER}{line}\n") == [
            f"m.a says that it is pure, but uses {library}{'.part' if '.part' in line else ''}"
        ]


def test_an_import_for_types_counts(check_purity: ModuleType) -> None:
    text = f"{PURE}from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio\n"
    assert found(check_purity, a=text) == ["m.a says that it is pure, but uses asyncio"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("open('file')", "builtins.open"),
        ("print('text')", "builtins.print"),
        ("import uuid\nuuid.uuid4()", "uuid.uuid4"),
        ("from uuid import uuid4", "uuid.uuid4"),
        ("import datetime as d\nd.datetime.now()", "datetime.datetime.now"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
        ("import sys\nsys.stdout.write('text')", "sys.stdout"),
        ("import pyarrow as pa\npa.fs.LocalFileSystem()", "pyarrow.fs"),
    ],
)
def test_a_pure_module_calls_nothing_impure(check_purity: ModuleType, line: str, name: str) -> None:
    assert found(check_purity, a=f"{PURE}{line}\n") == [f"m.a says that it is pure, but uses {name}"]


def test_values_of_the_same_libraries_are_pure(check_purity: ModuleType) -> None:
    text = f"""{PURE}
import sys
from datetime import datetime, timedelta
from uuid import UUID

first = UUID(int=1), datetime(2000, 1, 1) + timedelta(1), sys.byteorder
"""
    assert not found(check_purity, a=text)
    assert not found(check_purity, a=f"{PURE}def f(open):\n    open.now()\n    self.open('file')\n")


def test_a_pure_module_is_not_impure_through_other_modules(check_purity: ModuleType) -> None:
    modules = {
        "a": f"{PURE}from m.b import B\n",
        "b": f"{OTHER}from m.c import C\nclass B: ...\n",
        "c": f"{OTHER}import asyncio\nclass C: ...\n",
    }
    assert found(check_purity, **modules) == ["m.a says that it is pure, but imports m.b -> m.c -> asyncio"]
    assert not found(check_purity, **modules | {"c": f"{OTHER}import struct\nclass C: ...\n"})


def test_a_name_counts_for_the_module_that_defines_it(check_purity: ModuleType) -> None:
    interface = f"{OTHER}import asyncio\nfrom m.b import B\n__all__ = ['B', 'Other']\nclass Other: ...\n"
    modules = {"interface": interface, "b": f"{OTHER}class B: ...\n"}
    assert not found(check_purity, **modules, a=f"{PURE}from m.interface import B\n")
    assert found(check_purity, **modules, a=f"{PURE}from m.interface import Other\n") == [
        "m.a says that it is pure, but imports m.interface -> asyncio"
    ]


def test_each_impure_module_is_named_once(check_purity: ModuleType) -> None:
    assert found(check_purity, a=f"{PURE}import m.b\n", b=f"{PURE}import m.a\nimport time\n") == [
        "m.b says that it is pure, but uses time"
    ]


def test_an_exception_must_be_needed(check_purity: ModuleType) -> None:
    memory = {"a": f"{PURE}from m import memory\n", "memory": f"{OTHER}import mmap\n"}
    assert not found(check_purity, ("m.memory", "mmap"), **memory)
    assert not found(check_purity, ("m.a", "m.memory"), **memory)
    memory["memory"] = OTHER
    assert found(check_purity, ("m.memory", "mmap"), **memory) == [
        "m.memory is pure without its exception for mmap: remove it from EXCEPTIONS"
    ]


def test_ports_for_files_and_threads_are_not_pure(check_purity: ModuleType) -> None:
    port = {"moldau.runtime.files.disk": "class Disk: ...\n"}
    work = {"moldau.work": f"{OTHER}from moldau.runtime.files.disk import Disk\ndef parse(): ...\n"}
    user = {"moldau.a": f"{PURE}from moldau.work import parse\n"}
    purity = check_purity.Purity(check_purity.Sources(port | work | user))
    assert not list(purity.findings())
    work["moldau.work"] = work["moldau.work"].replace(OTHER, PURE)
    purity = check_purity.Purity(check_purity.Sources(port | work | user))
    assert list(purity.findings()) == ["moldau.work says that it is pure, but uses moldau.runtime.files.disk"]


def test_every_docstring_may_say_that_the_module_is_pure(check_purity: ModuleType) -> None:
    sources = check_purity.Sources(
        {
            "m": "",
            "m.package": PURE,
            "m.package.inner": OTHER,
            "m.of_class": f'{OTHER}class A:\n    """Chooses. Pure."""\n',
            "m.of_function": f'{OTHER}def f():\n    """Chooses. Pure: no clock."""\n',
            "m.other": f'{OTHER}class A:\n    """Uses the pure state."""\n',
        }
    )
    pure = {name for name in sources.modules if sources.says_pure(name)}
    assert pure == {"m.package", "m.package.inner", "m.of_class", "m.of_function"}


def test_the_pure_modules_of_the_repository(check_purity: ModuleType) -> None:
    sources = check_purity.read_sources()
    purity = check_purity.Purity(sources, check_purity.EXCEPTIONS)
    assert not list(purity.findings())
    assert len(purity.pure) > 350
    for name in (
        "moldau.quorum.core.raft",
        "moldau.coordinators.transactions.shard",
        "moldau.coordinators.groups.shard",
        "moldau.coordinators.groups.classic.groups",
        "moldau.coordinators.groups.offsets.offsets",
        "moldau.chunks.redirects",
        "moldau.storage.log.leader_epochs",
    ):
        assert name in purity.pure
    assert "moldau.coordinators.transactions.service" not in purity.pure
