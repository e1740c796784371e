"""The APIs of the diskless coordinators (KIP-1164's and Moldau's own), for nodes, readers and operators'
tools.

Every listener of a broker serves them. The declaration of each call contains the right that a client needs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from moldau.coordinators.diskless.calls.declaration import DisklessCall
from moldau.coordinators.diskless.calls.epochs import KnownEpochs, check_epochs
from moldau.coordinators.diskless.calls.port import ServedCalls
from moldau.coordinators.diskless.calls.subjects import (
    changes,
    commit,
    commit_parts,
    describing,
    files,
    reading,
    transactions,
)
from moldau.coordinators.diskless.calls.subjects.reading import FIND_BATCHES
from moldau.network.authorization import Authorizer
from moldau.network.context import ConnectionContext, RequestContext
from moldau.network.own_serving import (
    acts_for_cluster,
    check_read,
    cluster_action_needed,
    waited_ms,
)
from moldau.network.served import Handler, Served
from moldau.protocol.own.diskless.find_batches import DisklessFindBatchesRequest
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError

_SUBJECTS: Final = (changes, commit, commit_parts, reading, files, describing, transactions)

CALLS: Final[Mapping[int, DisklessCall[Any, Any]]] = MappingProxyType(
    {
        call.api_key: call
        for subject in _SUBJECTS
        for call in vars(subject).values()
        if isinstance(call, DisklessCall)
    }
)
"""All calls of diskless coordinators, by API key. The table has every call that a module in ``_SUBJECTS``
declares. Therefore a new call in such a module needs no change of this file."""


class DisklessHandlers:
    """Forwards requests to the coordinators that this broker leads."""

    def __init__(
        self,
        coordinators: ServedCalls,
        authorizer: Authorizer,
        topic_name: Callable[[UUID], str | None],
        epochs: KnownEpochs | None = None,
    ) -> None:
        """``topic_name`` returns the name of a topic of the cluster, or ``None`` when there is no such topic.
        Requests that name a newer epoch than ``epochs`` are refused.
        """
        self.calls = CALLS
        self._coordinators = coordinators
        self._authorizer = authorizer
        self._topic_name = topic_name
        self._epochs = epochs
        self._finding: WeakKeyDictionary[ConnectionContext, dict[int, asyncio.Event]] = WeakKeyDictionary()

    def table(self) -> dict[int, Handler]:
        return {
            key: Served(self.handle, call.cuts, call.parsed_bytes_max, call.long_answers, right=call.right)
            for key, call in self.calls.items()
        }

    def handle(self, context: RequestContext, request: Any) -> Awaitable[Message]:
        call = CALLS[context.api_key]
        self._check(context, call, request)
        if self._epochs is not None:
            check_epochs(call.named_epochs(request, self._epochs))
        if call is FIND_BATCHES and request.max_wait_ms:
            return self._find(context, request)
        return call.answer(self._coordinators, request, context.api_version, waited_ms(context))

    async def _find(self, context: RequestContext, request: DisklessFindBatchesRequest) -> Message:
        """Handle a FindBatches request that may wait.

        The wait ends early when the next FindBatches request for the same coordinator arrives on the
        connection. On a connection, responses are sent in the order of the requests, so the next response
        would otherwise be delayed by a response that the reader no longer needs.
        """
        version = context.api_version
        finding = self._finding.setdefault(context.connection, {})
        earlier, overtaken = finding.get(request.coordinator_id), asyncio.Event()
        finding[request.coordinator_id] = overtaken
        if earlier is not None:
            earlier.set()
        answer = asyncio.ensure_future(
            FIND_BATCHES.answer(self._coordinators, request, version, waited_ms(context))
        )
        waiting = asyncio.ensure_future(overtaken.wait())
        try:
            await asyncio.wait((answer, waiting), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        finally:
            answer.cancel()
            waiting.cancel()
            await asyncio.gather(answer, waiting, return_exceptions=True)
            if finding.get(request.coordinator_id) is overtaken:
                del finding[request.coordinator_id]
        at_once = replace(request, max_wait_ms=0)
        return await FIND_BATCHES.answer(self._coordinators, at_once, version, waited_ms(context))

    def _check(self, context: RequestContext, call: DisklessCall[Any, Any], request: Any) -> None:
        """Raises ``KafkaError`` if the client lacks a right that the call requires. Raises UNKNOWN_TOPIC_ID
        if the check needs the topic's name and the topic is unknown."""
        if acts_for_cluster(self._authorizer, context):
            return
        if call.right is not Right.READ_TOPIC:
            raise cluster_action_needed()
        for topic_id in call.topic_ids(request):
            name = self._topic_name(topic_id)
            if name is None:
                raise KafkaError(ErrorCode.unknown_topic_id, f"there is no topic {topic_id}")
            check_read(self._authorizer, context, name)
