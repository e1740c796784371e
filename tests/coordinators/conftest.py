"""The option ``--rewrite`` writes the current outputs into the golden scripts, so that the diff can be
reviewed."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # the conftest of another folder has registered the same option
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
