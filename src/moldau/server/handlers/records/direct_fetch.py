"""Fetches of consumers, from the request's bytes to the response's bytes.

A request joins the group of an equal request that waits (:mod:`.waiting_fetches`), if there is one. Else a
request for a single partition is read without message objects (:mod:`.lone_fetch`). A request for more
partitions is decoded, and read as the general handler reads it. The general handler processes followers,
sessions with several partitions, requests that would be refused, and requests for a single partition that
this broker does not have.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from struct import Struct
from typing import Any, Final

from moldau.network.authorization import AclOperation, AclResourceType
from moldau.network.context import Answer, Buffers, RequestContext
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import request_decoder, response_encoder
from moldau.protocol.fast_paths.lone_fetch import FIRST_LONE_VERSION, REPLICA_STATE_VERSION, lone_reader
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.partitions import PartitionKey
from moldau.runtime import UnexpectedErrors
from moldau.runtime.errors import KafkaError
from moldau.server.handlers.records.fetch_passes import FetchPasses, Gathering, requested_positions
from moldau.server.handlers.records.fetch_services import FetchServices
from moldau.server.handlers.records.lone_fetch import LoneFetches
from moldau.server.handlers.records.waiting_fetches import FetchQuestion, WaitingFetches
from moldau.server.requests.dispatch import DirectHandler, failure
from moldau.server.requests.fetch_sessions import FINAL_EPOCH, INVALID_SESSION_ID, FetchScope
from moldau.server.requests.throttles import Hold

BODY_BYTES_MAX: Final = 8 * 1024
"""Maximum size in bytes of a request that equal requests may join. It has space for 250 partitions."""

_SESSION_BYTES: Final = 8
_unpack_session = Struct(">ii").unpack_from


def direct_fetch(
    version: int,
    services: FetchServices,
    hold: Hold | None,
    settle: Callable[[], None],
    unexpected: UnexpectedErrors,
) -> DirectHandler | None:
    """The direct handler of a version of Fetch. It is None if the version has no direct handler, and if
    ``hold`` throttles consumers. ``settle`` writes the records that were staged before a request."""
    if version < FIRST_LONE_VERSION or hold is not None:
        return None
    return DirectFetches(version, services, settle, unexpected).fetch


class DirectFetches:
    """The direct handler of one version of Fetch."""

    def __init__(
        self, version: int, services: FetchServices, settle: Callable[[], None], unexpected: UnexpectedErrors
    ) -> None:
        # The ids of the session come after the maximum wait, the limits of bytes and the isolation level. In
        # older versions, the replica id is before them.
        self._session_at = 13 if version >= REPLICA_STATE_VERSION else 17
        self._services = services
        self._settle = settle
        self._unexpected = unexpected
        self._decode = request_decoder(ApiKey.FETCH, version)
        self._encode = response_encoder(ApiKey.FETCH, version)
        self._read_lone = lone_reader(version)
        self._lone = LoneFetches(version, services, self.failure)
        self._waiting = WaitingFetches(services.arrivals, unexpected)

    def fetch(self, context: RequestContext, body: memoryview) -> Answer:
        """Answer a request. Returns None if the general handler must process it."""
        key: Hashable | None = None
        if self._is_without_session(body):
            connection = context.connection
            # Responses differ between listeners, because they name leaders with their addresses.
            key = bytes(body), connection.rack, connection.listener_name
            group = self._waiting.find(key)
            if group is not None and self._may_read(context, group.topics):
                return group.join()
        # A failure ends the connection, and must come before the session of the request changes.
        self._settle()
        lone = self._read_lone(body)
        question: FetchQuestion[Any] | None = None
        if lone is not None:
            question = self._lone.question(context, lone)
        elif key is not None:
            question = self._rows_question(context, body)
        if question is None:
            return None
        try:
            found = question.read()
            if not isinstance(found, asyncio.Future) and question.is_enough(found):
                return question.body(found)
        except Exception as error:
            return question.failure(error)
        return self._waiting.begin(question, found, key)

    def _is_without_session(self, body: memoryview) -> bool:
        if len(body) > BODY_BYTES_MAX or len(body) < self._session_at + _SESSION_BYTES:
            return False
        return _unpack_session(body, self._session_at) == (INVALID_SESSION_ID, FINAL_EPOCH)

    def _may_read(self, context: RequestContext, topics: Iterable[str]) -> bool:
        allows = self._services.authorizer.allows
        return all(allows(context, AclOperation.READ, AclResourceType.TOPIC, topic) for topic in topics)

    def _rows_question(self, context: RequestContext, body: memoryview) -> "RowsQuestion | None":
        request: FetchRequest = self._decode(body)
        scope = FetchScope(None, dict(requested_positions(request)), incremental=False)
        passes = FetchPasses(self._services, context, scope, request)
        return RowsQuestion(self, context, request, passes) if passes.may_be_shared else None

    def encoded(self, response: FetchResponse) -> Buffers:
        """The body of a response."""
        return self._encode(response)

    def failure(self, context: RequestContext, error: BaseException) -> Buffers:
        """The response to a request whose read has raised an error."""
        if not isinstance(error, KafkaError):
            self._unexpected.report("a fetch of a consumer", error)
        return self._encode(failure(context, error))


class RowsQuestion:
    """A request for several partitions, without a session: a
    :class:`moldau.server.handlers.records.waiting_fetches.FetchQuestion`."""

    def __init__(
        self, owner: DirectFetches, context: RequestContext, request: FetchRequest, passes: FetchPasses
    ) -> None:
        self._owner = owner
        self._context = context
        self._passes = passes
        self.max_wait_ms = request.max_wait_ms
        self.topics = passes.topics
        self.keys: Sequence[PartitionKey] = ()

    def read(self) -> "Gathering | asyncio.Future[Gathering]":
        pending = self._passes.gather()
        self.keys = pending.keys
        return pending if isinstance(pending, Gathering) else pending.gathered()

    def is_enough(self, gathering: Gathering) -> bool:
        return self._passes.is_enough(gathering)

    def size_bytes(self, gathering: Gathering) -> int:
        return gathering.size_bytes

    def body(self, gathering: Gathering) -> Buffers:
        return self._owner.encoded(self._passes.response(gathering))

    def count_again(self, gathering: Gathering, times: int) -> None:
        self._passes.count_again(gathering, times)

    def failure(self, error: BaseException) -> Buffers:
        return self._owner.failure(self._context, error)
