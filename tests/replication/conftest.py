"""The option ``--rewrite`` writes the current outputs into the golden scripts, so that the diff can be
reviewed."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Pytest raises this error if the conftest of another folder has already registered the option.
    with contextlib.suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
