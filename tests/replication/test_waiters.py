"""The waiting room: woken by the right key, once, and empty afterwards."""

import asyncio

from moldau.replication.waiters import WaitingRoom


def test_a_waiter_is_woken_by_any_of_its_keys_and_leaves_the_others() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        first = room.wait(["a", "b"], 60)
        second = room.wait(["b"], 60)
        room.notify("c")
        assert not first.future.done()
        room.notify("a")
        assert await first.future is True
        assert not second.future.done()
        assert len(room) == 1
        room.notify("b")
        assert await second.future is True
        assert len(room) == 0

    asyncio.run(scenario())


def test_a_waiter_gives_up_at_its_deadline() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiter = room.wait(["a"], 0.001)
        assert await waiter.future is False
        assert len(room) == 0
        room.notify("a")

    asyncio.run(scenario())


def test_finishing_twice_is_harmless() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiter = room.wait(["a"], 60)
        waiter.finish(False)
        waiter.finish(True)
        assert await waiter.future is False

    asyncio.run(scenario())


def test_everyone_is_sent_away_when_the_node_stops() -> None:
    async def scenario() -> None:
        room: WaitingRoom[str] = WaitingRoom()
        waiters = [room.wait(["a", "b"], 60), room.wait(["b"], 60)]
        room.release_all()
        assert [await waiter.future for waiter in waiters] == [False, False]
        assert len(room) == 0

    asyncio.run(scenario())
