"""``--rewrite``: write what the code does now into the golden scripts, to be read in the diff."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another folder's scripts have the same flag
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
