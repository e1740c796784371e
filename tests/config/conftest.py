"""``--rewrite``: gets Kafka's verdicts again and writes them into the golden table, so that the diff can
be reviewed."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Several folders of tests have golden files; the first one that is collected registers the option.
    with contextlib.suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
