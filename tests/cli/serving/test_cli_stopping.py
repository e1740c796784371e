"""Time limits of a stop. A time limit ends the node only if the node has stopped closing logs."""

import asyncio
import contextlib

import pytest

from moldau.cli.errors import CommandError
from moldau.cli.serving import serve
from moldau.simulation.world.world import World


class ClosingNode:
    """A node that closes one log each second, until only ``left`` logs are open. If ``left`` is 0, the stop
    is then complete. Otherwise the stop never ends."""

    def __init__(self, open_log_count: int, left: int = 0) -> None:
        self.open_log_count = open_log_count
        self.left = left
        self.is_cancelled = False

    def find(self, kind: type) -> None:
        return None

    async def stop(self) -> None:
        try:
            while self.open_log_count > self.left:
                await asyncio.sleep(1)
                self.open_log_count -= 1
            if self.left:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


def seconds_of_stop(node: ClosingNode) -> float:
    with World(1) as world:
        with contextlib.suppress(CommandError):
            world.run(serve._stop(node))
        return world.loop.elapsed_s()


def test_a_node_may_close_logs_for_as_long_as_it_takes() -> None:
    node = ClosingNode(1_000)
    assert seconds_of_stop(node) == pytest.approx(1_000, abs=1)
    assert not node.is_cancelled


@pytest.mark.parametrize(("logs", "left", "seconds"), [(1, 1, 9), (20, 5, 27)])
def test_a_node_that_closes_no_more_logs_is_ended(logs: int, left: int, seconds: int) -> None:
    node = ClosingNode(logs, left)
    assert seconds_of_stop(node) == pytest.approx(seconds, abs=0.1)
    assert node.is_cancelled
