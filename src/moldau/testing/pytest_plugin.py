"""Pytest fixtures: ``moldau_node`` gives a test a running node of its own."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.node import Node


@pytest.fixture
def moldau_node() -> "Iterator[Node]":
    """A fresh node: a free port, a temporary folder, stopped after the test."""
    # The import is here because every pytest run loads this plugin when Moldau is installed.
    from moldau.testing.node import Node

    with Node() as node:
        yield node
