"""Fetch: read partitions in request order within the byte budget, or wait for more data.

If a request finds fewer bytes than ``min_bytes``, it waits in the broker's ``WaitingRoom``. It continues
after an append to one of its partitions, or when its ``max_wait_ms`` have passed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from moldau.network.context import RequestContext
from moldau.network.served import Handler, HandlerResult, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.costs import PARSED_BYTES_MAX
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.partitions import PartitionKey
from moldau.replication.waiters import FutureWaiter
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import KafkaError
from moldau.server.handlers.records.direct_fetch import direct_fetch
from moldau.server.handlers.records.fetch_passes import (
    POSITIONS_A_TURN,
    FetchPasses,
    Gathering,
    PendingReads,
    requested_positions,
)
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.requests.dispatch import DirectHandler
from moldau.server.requests.fetch_sessions import FetchScope, FetchTarget, SessionPosition
from moldau.server.requests.throttles import Throttles

POSITIONS_AT_ONCE: Final = 4 * POSITIONS_A_TURN
"""If a request has more partitions than this number, it is processed in several iterations of the event
loop."""


@dataclass(slots=True)
class WaitingFetch:
    """A request that needs more bytes than it has found so far."""

    passes: FetchPasses
    due: float
    """The latest time at which the request is answered, by the event loop's clock."""
    answer: "asyncio.Future[FetchResponse]"


class FetchHandlers:
    """The Fetch API."""

    def __init__(self, services: FetchServices) -> None:
        self._services = services
        self._partitions = services.partitions
        self._arrivals = services.arrivals
        self._sessions = services.sessions

    def table(self) -> dict[int, Handler]:
        return {
            ApiKey.FETCH: Served(
                self.fetch,
                # A session may contain every partition of a node.
                parsed_bytes_max=PARSED_BYTES_MAX,
                long_answers=(("responses", "partitions"),),
                is_usually_large=True,
            )
        }

    def direct(
        self, throttles: Throttles, settle: Callable[[], None], unexpected: UnexpectedErrors
    ) -> Callable[[int], DirectHandler | None]:
        """The fast paths for requests of consumers, by version. ``settle`` writes the records that were
        staged before a request."""

        def of(version: int) -> DirectHandler | None:
            return direct_fetch(version, self._services, throttles.of(ApiKey.FETCH), settle, unexpected)

        return of

    def fetch(self, context: RequestContext, request: FetchRequest) -> HandlerResult:
        if sum(len(topic.partitions) for topic in request.topics) > POSITIONS_AT_ONCE:
            return self._fetch_many(context, request)
        try:
            scope = self._open_session(request, dict(requested_positions(request)), context.received_at)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        passes = FetchPasses(self._services, context, scope, request)
        if passes.position_count > POSITIONS_AT_ONCE:
            return self._fetch_in_turns(passes, request)
        passes.begin()
        pending = passes.gather()
        if isinstance(pending, Gathering) and passes.is_enough(pending):
            return passes.response(pending)
        room = self._arrivals
        due = room.due(request.max_wait_ms / 1000)
        waiting = WaitingFetch(passes, due, room.loop.create_future())
        self._wait(waiting, pending)
        return waiting.answer

    async def _fetch_many(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """Handle a request like :meth:`fetch`, if it has very many partitions. No other request of the
        connection is read until the response is ready."""
        requested: dict[FetchTarget, SessionPosition] = {}
        for count, (target, position) in enumerate(requested_positions(request), 1):
            requested[target] = position
            if not count % POSITIONS_A_TURN:
                await asyncio.sleep(0)
        try:
            scope = self._open_session(request, requested, context.received_at)
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
        return await self._fetch_in_turns(FetchPasses(self._services, context, scope, request), request)

    async def _fetch_in_turns(self, passes: FetchPasses, request: FetchRequest) -> FetchResponse:
        """Read the partitions and wait, like :meth:`fetch`. Other work can run between two partitions."""
        room = self._arrivals
        due = room.due(request.max_wait_ms / 1000)
        while True:
            passes.begin()
            keys = await self._keys_in_turns(passes)
            # The request becomes a waiter before the first read, so that it misses no append.
            waiter = room.wait_until(keys, due)
            passes.note_waiter(waiter)
            try:
                gathering = await self._gather_in_turns(passes)
                if not passes.is_enough(gathering) and await waiter.future:
                    continue
            finally:
                waiter.finish(False)
            rows = passes.rows()
            for start in range(0, len(gathering.outcomes), POSITIONS_A_TURN):
                rows.add(gathering.outcomes[start : start + POSITIONS_A_TURN])
                await asyncio.sleep(0)
            return rows.response()

    async def _keys_in_turns(self, passes: FetchPasses) -> list[PartitionKey]:
        keys: list[PartitionKey] = []
        for count, (target, _) in enumerate(passes.due(), 1):
            with contextlib.suppress(KafkaError):
                keys.append(self._partitions.find(*target).key)
            if not count % POSITIONS_A_TURN:
                await asyncio.sleep(0)
        return keys

    @staticmethod
    async def _gather_in_turns(passes: FetchPasses) -> Gathering:
        steps = passes.gathering()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                pending: Gathering | PendingReads = end.value
                break
            await asyncio.sleep(0)
        return pending if isinstance(pending, Gathering) else await pending.gathered()

    def _open_session(
        self, request: FetchRequest, requested: Mapping[FetchTarget, SessionPosition], now_s: float
    ) -> FetchScope:
        forgotten = (
            FetchTarget(topic.topic, topic.topic_id, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        )
        return self._sessions.open(request.session_id, request.session_epoch, requested, forgotten, now_s)

    def _wait(self, waiting: "WaitingFetch", pending: "Gathering | PendingReads") -> None:
        """Let the request wait for more bytes. Callbacks continue it, and it has no task of its own, because
        very many idle consumers may wait at the same time."""
        # The request becomes a waiter before the pending reads end. These reads may take a long time, and
        # the request must not miss an append during this time.
        waiter = self._arrivals.wait_until(pending.keys, waiting.due)
        waiting.passes.note_waiter(waiter)
        if isinstance(pending, PendingReads):
            pending.then(partial(self._consider, waiting, waiter), waiting.answer)
        else:
            self._consider(waiting, waiter, pending)

    def _consider(
        self, waiting: "WaitingFetch", waiter: FutureWaiter[PartitionKey], gathering: Gathering
    ) -> None:
        if waiting.passes.is_enough(gathering):
            waiter.finish(False)
            self._finish(waiting, gathering)
        else:
            waiter.future.add_done_callback(partial(self._look_again, waiting, gathering))

    def _look_again(self, waiting: "WaitingFetch", before: Gathering, woken: "asyncio.Future[bool]") -> None:
        if not woken.result():
            self._finish(waiting, before)
            return
        passes = waiting.passes
        try:
            passes.begin()
            pending = passes.gather()
            if isinstance(pending, Gathering) and passes.is_enough(pending):
                self._finish(waiting, pending)
            else:
                self._wait(waiting, pending)
        except Exception as error:
            waiting.answer.set_exception(error)

    def _finish(self, waiting: "WaitingFetch", gathering: Gathering) -> None:
        answer = waiting.answer
        if answer.done():
            return
        try:
            answer.set_result(waiting.passes.response(gathering))
        except Exception as error:
            answer.set_exception(error)
