"""Some batches of a partition must be opened before they are appended. The batches of each client stay in
order."""

import asyncio
from dataclasses import dataclass

from moldau.replication.appending.slow_batches import OpeningQueue
from moldau.replication.partition_interface import AppendOutcome
from moldau.runtime import ErrorCode, UnexpectedErrors
from moldau.runtime.fair_lane import FairLane
from moldau.runtime.steps import NextTurn


@dataclass(eq=False)
class Connection:
    closed: bool = False
    principal: str = "User:ANONYMOUS"
    peer_host: str = "host"


class TurningWorkers:
    """Runs each function on the event loop, one turn later."""

    async def run(self, function, *args):
        await asyncio.sleep(0)
        return function(*args)


def test_a_client_waits_only_for_its_own_batches():
    appended = []

    def opening(name, steps):
        for _ in range(steps):
            yield NextTurn.NEXT
        return name

    def append(name):
        appended.append(name)
        return AppendOutcome()

    def refuse(error):
        return AppendOutcome(error.code)

    async def main():
        queue = OpeningQueue(FairLane(TurningWorkers()), UnexpectedErrors())
        slow, quick, gone = Connection(), Connection(), Connection()

        def put(client, name, steps):
            return queue.put(client, opening(name, steps), append, refuse, is_lasting=False)

        answers = [put(slow, "first", 50), put(slow, "second", 0), put(quick, "other", 2)]
        dropped = put(gone, "dropped", 3)
        assert queue.is_busy(slow)
        assert not queue.is_busy(Connection())
        gone.closed = True
        outcomes = await asyncio.wait_for(asyncio.gather(*answers, dropped), 60)
        assert [outcome.error for outcome in outcomes] == [ErrorCode.none] * 3 + [ErrorCode.network_exception]
        assert not queue.is_busy(slow)

    asyncio.run(main())
    assert appended == ["other", "first", "second"]
