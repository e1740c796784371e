"""The channel to an active controller in another process."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from moldau.cluster.controller.channel import Caller
from moldau.cluster.controller.envelope import EnvelopeRefusedError, open_response, wrap
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.envelope import EnvelopeResponse
from moldau.protocol.schema import Message
from moldau.quorum.core.voters import Voter
from moldau.runtime import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_S: Final = 0.05
LAST_WORD_S: Final = 1.0
"""Time in seconds to wait for the response of a controller after another node became the leader. The former
controller may have sent the response already."""


class NetworkControllerChannel:
    """Sends requests to the quorum's leader; a :class:`moldau.cluster.controller.channel.ControllerChannel`.

    A request that cannot be sent waits for a leader until the deadline. If a response is lost, the change may
    have been made. Therefore this class does not send the request a second time.
    """

    def __init__(
        self,
        client: RpcClient,
        find: Callable[[int], Voter | None],
        leader_id: Callable[[], int | None],
        *,
        timeout_ms: int = 30_000,
    ) -> None:
        """``find`` returns a node with its address, by the node's id.

        ``timeout_ms`` limits a request without a deadline, including all its attempts.
        """
        self._client = client
        self._find = find
        self._leader_id = leader_id
        self._timeout_ms = timeout_ms

    async def send(
        self, request: Message, caller: Caller | None = None, deadline: float | None = None
    ) -> Any:
        """See :meth:`moldau.cluster.controller.channel.ControllerChannel.send`.

        The request of a client is sent in an Envelope (KIP-590). Therefore the controller gets the client,
        the client's address and the client's time-out.
        """
        loop = asyncio.get_running_loop()
        late = ErrorCode.request_timed_out
        if deadline is None:
            deadline, late = loop.time() + self._timeout_ms / 1000, ErrorCode.not_controller
        while True:
            reason = "this node knows of no leader of the metadata quorum"
            leader_id = self._leader_id()
            leader = None if leader_id is None else self._find(leader_id)
            if leader is not None:
                try:
                    # Connect first. If this fails, the request was not sent, so it can be tried again safely.
                    await self._while_leading(
                        leader.key.id,
                        self._client.version_of(leader.host, leader.port, request.API_KEY),
                        deadline,
                    )
                except (KafkaError, TimeoutError) as error:
                    reason = f"controller {leader_id} cannot be reached: {error}"
                else:
                    try:
                        return await self._ask(leader, request, caller, deadline)
                    except EnvelopeRefusedError as error:
                        # The node does not lead the quorum, and it has not started to process the request.
                        reason = f"controller {leader_id} does not lead: {error}"
                    except (KafkaError, TimeoutError) as error:
                        code = late if loop.time() >= deadline else ErrorCode.not_controller
                        reason = f"the controller's answer is lost: {error}"
                        if caller is not None:
                            logger.warning("%s of %s: %s", type(request).__name__, caller, reason)
                        raise KafkaError(code, reason) from error
            if loop.time() + RETRY_S >= deadline:
                raise KafkaError(late, reason)
            await asyncio.sleep(RETRY_S)

    async def _ask(self, leader: Voter, request: Message, caller: Caller | None, deadline: float) -> Any:
        # The remaining time is rounded up. Therefore ``deadline`` on this node passes before the time-out of
        # the request.
        left_ms = max(1, math.ceil((deadline - asyncio.get_running_loop().time()) * 1000))
        if caller is None:
            asking = self._client.request(leader.host, leader.port, request.API_KEY, None, request, left_ms)
        else:
            asking = self._forward(leader, request, caller, left_ms)
        return await self._while_leading(leader.key.id, asking, deadline, LAST_WORD_S)

    async def _forward(self, leader: Voter, request: Message, caller: Caller, left_ms: int) -> Any:
        version = await self._client.version_of(leader.host, leader.port, request.API_KEY)
        envelope = wrap(request, version, caller, left_ms)
        answer: EnvelopeResponse = await self._client.request(
            leader.host, leader.port, ApiKey.ENVELOPE, None, envelope, left_ms
        )
        return open_response(answer, request.API_KEY, version)

    async def _while_leading(
        self, leader_id: int, work: Coroutine[Any, Any, T], deadline: float, grace_s: float = 0.0
    ) -> T:
        """Wait for ``work``, and return its result.

        ``work`` is cancelled ``grace_s`` after another node became leader, and at the deadline; then this
        method raises ``TimeoutError``. A leader that has lost its network sends neither a response nor a
        refusal. Without this method, requests would wait for this old leader until their deadline, although
        there is a new leader.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        try:
            while True:
                await asyncio.wait((task,), timeout=min(RETRY_S, max(0.0, deadline - loop.time())))
                if task.done():
                    return task.result()
                if loop.time() >= deadline:
                    raise TimeoutError("no answer within the time-out")
                if self._leader_id() not in (None, leader_id):
                    deadline = min(deadline, loop.time() + grace_s)
                    if not grace_s:
                        raise TimeoutError(f"controller {leader_id} leads no more")
        finally:
            task.cancel()
