"""The contract of throttles. With a throttle, a subsystem slows down the senders of requests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.network.context import ConnectionContext, RequestContext
from moldau.protocol.api import ApiKey, Scope
from moldau.protocol.codec import decode_response, encode_request
from moldau.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode
from moldau.server.extensions import Extensions
from moldau.server.requests.dispatch import DirectHandlers, Dispatcher
from moldau.server.subsystem import Contribution
from moldau.simulation.world.world import World

FIND = ApiKey.FIND_COORDINATOR
VERSION = 3


class Control:
    """A connection that records for how long it is not read."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def mute(self, seconds: float) -> None:
        self.pauses_s.append(seconds)

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def yield_turn(self) -> None: ...

    def close_when_answered(self) -> None: ...


class House:
    """A dispatcher that uses the contributions of some subsystems, and a connection to this dispatcher."""

    def __init__(self, *contributions: Contribution) -> None:
        extensions = Extensions()
        for contribution in contributions:
            extensions.add(contribution)
        self.dispatcher = Dispatcher(
            extensions.handlers,
            Scope.BROKER,
            direct=extensions.direct,
            throttles=extensions.throttles,
        )
        self.control = Control()
        self.connection = ConnectionContext("one", "PLAINTEXT", control=self.control)

    async def ask(self, request: Message, api_key: ApiKey = FIND, version: int = VERSION) -> Any:
        body = memoryview(b"".join(encode_request(api_key, version, request)))
        context = RequestContext(api_key, version, 1, "client", self.connection, 0.0, len(body))
        found = self.dispatcher(context, body)
        answer = await found if isinstance(found, asyncio.Future) else found
        return None if answer is None else decode_response(api_key, version, b"".join(answer))


def play(story: Callable[[], Awaitable[None]]) -> None:
    with World(1) as world:
        world.run(story())


def now(context: RequestContext, request: Message) -> Message:
    return FindCoordinatorResponse()


async def later(context: RequestContext, request: Message) -> Message:
    await asyncio.sleep(0.3)
    return FindCoordinatorResponse()


def pausing(seconds: float) -> Contribution:
    return Contribution(throttles={FIND: lambda context, waits: seconds})


def test_a_throttle_of_any_subsystem_mutes_the_connection_and_is_in_the_response() -> None:
    async def story() -> None:
        house = House(Contribution(handlers={FIND: now}), pausing(0.25))
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == 250
        assert house.control.pauses_s == [0.25]

    play(story)


def test_the_longest_of_several_throttles_counts() -> None:
    async def story() -> None:
        house = House(pausing(0.1), Contribution(handlers={FIND: now}), pausing(0.4), pausing(0.0))
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == 400
        assert house.control.pauses_s == [0.4]

    play(story)


@pytest.mark.parametrize(("pause_s", "rest_ms"), [(0.5, 200), (0.2, 0)])
def test_a_late_response_contains_the_remaining_throttle_time(pause_s: float, rest_ms: int) -> None:
    async def story() -> None:
        house = House(Contribution(handlers={FIND: later}), pausing(pause_s))
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == rest_ms
        assert house.control.pauses_s == [pause_s]

    play(story)


@pytest.mark.parametrize(("handler", "waits"), [(now, False), (later, True)])
def test_a_throttle_is_called_once_after_the_handler_and_learns_whether_the_response_waits(
    handler: Callable[..., Any], waits: bool
) -> None:
    async def story() -> None:
        steps: list[object] = []

        def handle(context: RequestContext, request: Message) -> Any:
            steps.append("handled")
            return handler(context, request)

        def throttle(context: RequestContext, waiting: bool) -> float:
            steps.append((context.client_id, waiting))
            return 0.0

        house = House(Contribution(handlers={FIND: handle}, throttles={FIND: throttle}))
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == 0
        assert steps == ["handled", ("client", waits)]
        assert not house.control.pauses_s

    play(story)


def test_a_failed_request_is_throttled_too() -> None:
    async def story() -> None:
        def fail(context: RequestContext, request: Message) -> Message:
            raise ValueError("a defect")

        house = House(Contribution(handlers={FIND: fail}), pausing(0.1))
        answer = await house.ask(FindCoordinatorRequest())
        assert (answer.error_code, answer.throttle_time_ms) == (ErrorCode.unknown_server_error, 100)

    play(story)


def test_other_apis_are_not_throttled_and_a_response_without_the_field_is_unchanged() -> None:
    async def story() -> None:
        end = ApiKey.END_QUORUM_EPOCH
        other = Contribution(
            handlers={end: lambda context, request: EndQuorumEpochResponse()},
            throttles={end: lambda context, waits: 0.1},
        )
        house = House(Contribution(handlers={FIND: now}), other)
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == 0
        assert not house.control.pauses_s
        assert (await house.ask(EndQuorumEpochRequest(), end, 0)).error_code is ErrorCode.none
        assert house.control.pauses_s == [0.1]

    play(story)


def test_a_connection_that_is_closed_is_not_muted() -> None:
    async def story() -> None:
        house = House(Contribution(handlers={FIND: now}), pausing(0.1))
        house.connection.mark_closed()
        assert (await house.ask(FindCoordinatorRequest())).throttle_time_ms == 0
        assert not house.control.pauses_s

    play(story)


def test_only_one_subsystem_has_direct_handlers() -> None:
    extensions = Extensions()
    extensions.add(Contribution(direct=DirectHandlers()))
    with pytest.raises(ValueError, match="cannot share a turn"):
        extensions.add(Contribution(direct=DirectHandlers()))
