"""Fixtures of the tests that play seeded histories."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet_nodes() -> Iterator[None]:
    """Drop the log lines of simulated nodes about injected faults."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
