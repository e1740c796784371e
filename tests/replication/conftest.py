"""``--rewrite``: write the current outputs into the golden scripts, to be reviewed in the diff."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another folder's scripts have the same flag
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
