"""Pytest fixtures. ``moldau_node`` gives each test its own running node."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moldau.testing.node import Node


@pytest.fixture
def moldau_node() -> "Iterator[Node]":
    """A fresh node with a free port and a temporary folder. It is stopped after the test."""
    # The import is inside the function, because every pytest run loads this plugin when Moldau is installed.
    from moldau.testing.node import Node

    with Node() as node:
        yield node
