"""The channel to an active controller in another process."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from moldau.network.client import RpcClient
from moldau.protocol.schema import Message
from moldau.quorum.voters import VoterSet
from moldau.runtime import ErrorCode, KafkaError

RETRY_S: Final = 0.05


class RemoteControllerChannel:
    """Sends requests to the quorum's leader; a :class:`moldau.cluster.controller_channel.ControllerChannel`.

    A request that cannot be sent waits for the leader as it is known by then, until the deadline. A request
    whose answer is lost may have been carried out: it is never repeated here.
    """

    def __init__(
        self,
        client: RpcClient,
        voters: VoterSet,
        leader_id: Callable[[], int | None],
        *,
        timeout_ms: int = 30_000,
    ) -> None:
        """``timeout_ms`` bounds a request with all its attempts."""
        self._client = client
        self._voters = voters
        self._leader_id = leader_id
        self._timeout_ms = timeout_ms

    async def send(self, request: Message) -> Any:
        """See :meth:`moldau.cluster.controller_channel.ControllerChannel.send`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_ms / 1000
        while True:
            reason = "this node knows of no leader of the metadata quorum"
            leader_id = self._leader_id()
            leader = None if leader_id is None else self._voters.get(leader_id)
            if leader is not None:
                left_ms = max(1, int((deadline - loop.time()) * 1000))
                try:
                    # Connects first: a request that was not sent was not carried out.
                    async with asyncio.timeout(left_ms / 1000):
                        await self._client.version_of(leader.host, leader.port, request.API_KEY)
                except (KafkaError, TimeoutError) as error:
                    reason = f"controller {leader_id} cannot be reached: {error}"
                else:
                    return await self._ask(leader.host, leader.port, request, left_ms)
            if loop.time() + RETRY_S >= deadline:
                raise KafkaError(ErrorCode.not_controller, reason)
            await asyncio.sleep(RETRY_S)

    async def _ask(self, host: str, port: int, request: Message, timeout_ms: int) -> Any:
        try:
            return await self._client.request(host, port, request.API_KEY, None, request, timeout_ms)
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.not_controller, f"the controller's answer is lost: {error.message}"
            ) from error
