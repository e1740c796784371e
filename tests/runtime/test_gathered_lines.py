"""Frequent log lines of one kind are combined into few lines."""

import asyncio
import logging

import pytest

from moldau.runtime.gathered_lines import GatheredLines
from moldau.simulation.world.world import World

logger = logging.getLogger("test.gathered")


def test_many_lines_of_one_kind_become_one_line_per_second(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        lines = GatheredLines(logger, logging.ERROR, "%d partitions cannot be opened: %s (%s)")
        for number in range(13_000):
            lines.add(f"t-{number}", "/data is offline")
        await asyncio.sleep(2)
        lines.add("u-0", "/other is offline")
        lines.flush()
        await asyncio.sleep(2)

    with caplog.at_level(logging.ERROR, "test.gathered"), World(0) as world:
        world.run(story())
    assert [record.getMessage() for record in caplog.records] == [
        "13000 partitions cannot be opened: t-0, t-1, t-2, ... (/data is offline)",
        "1 partitions cannot be opened: u-0 (/other is offline)",
    ]
