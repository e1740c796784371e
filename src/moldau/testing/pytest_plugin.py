"""Pytest fixtures: ``moldau_node`` gives a test a running node of its own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.node import Node


@pytest.fixture
def moldau_node() -> "Iterator[Node]":
    """A fresh node: a free port, a temporary folder, stopped after the test."""
    # Imported here: this plugin is loaded into every pytest run where Moldau is installed.
    from moldau.testing.node import Node

    with Node() as node:
        yield node
