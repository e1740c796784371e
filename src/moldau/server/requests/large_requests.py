"""Handles requests that take long to decode or to answer. A worker thread decodes such a request, and the
request is answered in slices.

The event loop serves every connection, so no step on it may take long. Some requests need more memory than
``INLINE_PARSED_BYTES`` after they are parsed. A worker thread decodes such a request and encodes its
response. The handler gets the request in slices (see ``slices``), and other work can run on the event loop
after each slice.

The response to a slice is encoded before the next slice is handled (see ``joined_answers``). Therefore the
objects of the whole response never exist at the same time. While a large request is in progress, its
connection is not read, so that the requests of the connection keep their order. The number of such requests
in progress is limited to limit their memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from moldau.network.context import Buffers, RequestContext
from moldau.network.served import Handler, Served
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import RequestDecoder, encode_response
from moldau.protocol.costs import allowance
from moldau.protocol.schema import Message
from moldau.runtime.workers import Workers
from moldau.server.requests.joined_answers import JoinedAnswer
from moldau.server.requests.slices import cut_of, slices

INLINE_PARSED_BYTES: Final = 192 * 1024
"""The event loop handles requests whose parsed size, in bytes, is not above this limit. Requests of this size
have about 500 to 2,000 rows."""

WHOLE_PARSED_BYTES: Final = 4 * 1024 * 1024
"""The limit of the parsed size, in bytes, for requests that are not cut into slices. Requests of this size
have about 15,000 rows."""

ROWS_SHARE: Final = 5 / 8
"""The share of a memory limit that the parsed rows of a request may use. It is used for requests whose
duplicate rows are removed. The rest of the memory limit is for the index that finds duplicates, and for the
response, which may be larger than the request."""

AT_ONCE: Final = 4


class LargeRequests:
    """Handles the large requests of one dispatcher."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers.lane("moldau-large-requests")
        self._places = asyncio.Semaphore(AT_ONCE)

    async def answer(
        self,
        context: RequestContext,
        request: Message | bytes,
        decode: RequestDecoder,
        api: Served,
        finish: Callable[[Message], Message],
    ) -> Buffers | None:
        """Return the body of the response, or None when there is no response. The request is a decoded
        message or its bytes.

        ``finish`` completes the fields of the response outside its rows, on a worker. Raises ParsedSizeError
        for a request that is larger than its limit, and the errors of the handler.
        """
        key, version = context.api_key, context.api_version
        async with self._places:
            whole = (
                request if isinstance(request, Message) else await self._decode(context, request, decode, api)
            )
            cut = cut_of(api.cuts, whole)
            if cut is not None:
                joined = JoinedAnswer(key, version, cut.answered)
                waiting = await self._in_slices(context, slices(whole, cut), api.handle, joined)
        if cut is None:
            # A request that is not divided into slices does not count towards the limit, because it may wait
            # for records or for a group's members.
            message = await _settled(api.handle(context, whole))
            encode: Callable[[Message], Buffers] = partial(encode_response, key, version)
        else:
            for each in waiting:
                if (answer := await each) is not None:
                    await self._workers.run(joined.add, answer)
            message, encode = joined.message, joined.encoded
        if message is None:
            return None
        answered = message
        return await self._workers.run(lambda: encode(finish(answered)))

    async def _in_slices(
        self, context: RequestContext, parts: Iterator[Any], handle: Handler, joined: JoinedAnswer
    ) -> list["asyncio.Future[Message | None]"]:
        """Answer the slices in order. Meanwhile workers cut the next slice and encode the response to the
        previous slice.

        The slices of Produce do not wait for each other: the next slice is appended before the response to
        the previous slice is ready. In this case the result contains the futures of these responses.
        """
        waiting: list[asyncio.Future[Message | None]] = []
        part = await self._workers.run(next, parts, None)
        while part is not None:
            outcome = handle(context, part)
            answer: Message | None = None
            if not isinstance(outcome, Awaitable):
                answer = outcome
            elif context.api_key == ApiKey.PRODUCE:
                waiting.append(asyncio.ensure_future(outcome))
            else:
                answer = await outcome
            del outcome
            part = await self._workers.run(_next_part, joined, answer, parts)
            await asyncio.sleep(0)
        return waiting

    async def encode(self, encode: Callable[[], Buffers], answer: "asyncio.Future[Buffers | None]") -> None:
        """Encode a large response to a small request, and complete the request's future."""
        try:
            body = await self._workers.run(encode)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(body)

    async def _decode(
        self, context: RequestContext, body: bytes, decode: RequestDecoder, api: Served
    ) -> Message:
        most = parsed_bytes_max(api, len(body))
        decoded: Message = await self._workers.run(decode, body, most)
        return decoded


def parsed_bytes_max(api: Served, size_bytes: int) -> int:
    """Return the maximum memory of a parsed request, in bytes."""
    is_distinct = any(cut.distinct is not None for cut in api.cuts)
    most = allowance(size_bytes, ROWS_SHARE if is_distinct else 1)
    if api.parsed_bytes_max is not None:
        return min(most, api.parsed_bytes_max)
    return most if api.cuts else min(most, WHOLE_PARSED_BYTES)


async def _settled(answer: "Message | Awaitable[Message | None] | None") -> Message | None:
    return await answer if isinstance(answer, Awaitable) else answer


def _next_part(joined: JoinedAnswer, answer: Message | None, parts: Iterator[Any]) -> Any:
    if answer is not None:
        joined.add(answer)
    return next(parts, None)
