"""What every test shares: Hypothesis judges behaviour, never time; and which tests stay together."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("moldau", deadline=None, print_blob=True)
settings.load_profile("moldau")

TOGETHER = {"pipeline": "spark"}
"""Folders whose tests share something that takes long to start (a JVM with a Spark session)."""
APART = {"simulation"}
"""Folders whose tests share nothing and take long: any worker takes any of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell the distributor which tests one worker takes: those of a file, for they share a node."""
    for item in items:
        folder = Path(item.path).parent.name
        if folder not in APART:
            item.add_marker(pytest.mark.xdist_group(TOGETHER.get(folder, item.path.stem)))
