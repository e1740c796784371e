"""Responses that wait for the high watermark."""

import asyncio

import pytest

from moldau.coordinators.watermark_waits import CommitQueue
from moldau.runtime import ErrorCode, KafkaError
from moldau.simulation.world.world import World


async def _a_response_expires_although_the_timer_of_an_earlier_one_fires_first() -> None:
    loop = asyncio.get_running_loop()
    queue = CommitQueue(loop, 5_000)
    first, second = loop.create_future(), loop.create_future()
    queue.add(1, first, "first")
    queue.advance(1)
    await asyncio.sleep(4)
    queue.add(2, second, "second")
    begun = loop.time()
    with pytest.raises(KafkaError) as late:
        await second
    assert late.value.code is ErrorCode.coordinator_not_available
    assert loop.time() - begun == pytest.approx(5, abs=0.1)
    assert await first == "first"
    assert not len(queue)


def test_a_response_expires_although_the_timer_of_an_earlier_one_fires_first() -> None:
    with World(1) as world:
        world.run(_a_response_expires_although_the_timer_of_an_earlier_one_fires_first())
