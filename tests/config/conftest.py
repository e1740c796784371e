"""``--rewrite``: ask Kafka again and write its verdicts into the golden table, to be read in the diff."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Several folders of tests have golden files: the first one that is collected names the option.
    with contextlib.suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
