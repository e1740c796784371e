"""The option ``--rewrite`` gets Kafka's verdicts again and writes them into the golden table, so that the
diff can be reviewed."""

import contextlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    # Several test folders have golden files. The folder that is collected first registers the option.
    with contextlib.suppress(ValueError):
        parser.addoption("--rewrite", action="store_true", help="rewrite the golden scripts")
