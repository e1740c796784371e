"""A node for each test module, and a function that runs commands against this node."""

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import moldau.testing
from moldau.cli.main import main


class Ran(NamedTuple):
    """The result of a command: its exit code and output."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def node() -> "Iterator[moldau.testing.Node]":
    with moldau.testing.Node() as running:
        yield running


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> Run:
    """Run a command without a node. ``stdin`` is its input."""

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(list(arguments))
        out, err = capsysbinary.readouterr()
        return Ran(code, out.decode("utf-8", "surrogateescape"), err.decode())

    return run


@pytest.fixture
def run(cli: Run, node: "moldau.testing.Node", monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the module's node."""
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", node.bootstrap_servers)
    return cli
