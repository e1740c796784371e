"""The registration of this controller with the active controller (KIP-919). It contains this controller's
listeners and supported features.

The active controller uses it to decide whether a feature level can be raised. Kafka's controllers show the
listeners to tools.
"""

import asyncio
import contextlib
import logging
from typing import Final

from moldau.cluster.controller.network_channel import NetworkControllerChannel
from moldau.cluster.controller.service import ControllerService
from moldau.network.client.rpc_client import RpcClient
from moldau.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.bound_listeners import BoundListeners
from moldau.server.context import NodeContext
from moldau.server.metadata.membership import controller_endpoints
from moldau.server.metadata.metadata_node import MetadataNode
from moldau.server.metadata.quorum_peers import RECONNECT_LIMITS

logger = logging.getLogger(__name__)

METADATA_VERSION_SINCE: Final = 15
"""3.7-IV0, the first metadata version that has records for the registration."""
RETRY_S: Final = 1.0
_PLAINTEXT: Final = 0


class ControllerRegistrar:
    """Registers each incarnation once. It registers again when the metadata contain another incarnation.

    Use it in this order: construct it, call :meth:`start` when the listeners are open, and ``await close()``.
    """

    def __init__(self, context: NodeContext, metadata: MetadataNode, service: ControllerService) -> None:
        self._config = context.config
        self._features = context.features
        self._listeners: BoundListeners = context.listeners
        self._node_id = context.identity.node_id
        self._metadata = metadata
        self._publisher = metadata.publisher
        self._service = service
        self._incarnation_id = context.machine.entropy.uuid4()
        self._client = RpcClient(
            context.machine.entropy, client_id=f"controller-{self._node_id}", limits=RECONNECT_LIMITS
        )
        self._remote = NetworkControllerChannel(
            self._client, metadata.driver.addresses.find, lambda: metadata.driver.leader_id
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the registration."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller registration")

    async def close(self) -> None:
        """Stop the registration. This method may be called even if :meth:`start` was not called."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _run(self) -> None:
        await self._catch_up()
        if self._publisher.check_levels() is not None:
            return
        refusal = ""
        while True:
            await self._publisher.until(self._is_missing)
            try:
                answer = await self._send(self._request())
            except KafkaError as error:
                logger.debug("controller %d is not registered yet: %s", self._node_id, error.message)
                await asyncio.sleep(RETRY_S)
                continue
            if answer.error_code is ErrorCode.none:
                # The wait for the registration in the image has a time limit. It would never end if another
                # node with the same id has registered in the meantime.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._publisher.until(lambda: not self._is_missing())
                continue
            if answer.error_code is ErrorCode.inconsistent_voter_set:
                # ``not_counted`` logs a line that reports this refusal.
                self._metadata.driver.voice.not_counted(self._metadata.driver.leader_id)
                await asyncio.sleep(RETRY_S)
                continue
            reason = answer.error_message or answer.error_code.name
            if reason != refusal and answer.error_code is not ErrorCode.not_controller:
                logger.warning("the registration of controller %d is refused: %s", self._node_id, reason)
                refusal = reason
            await asyncio.sleep(RETRY_S)

    async def _catch_up(self) -> None:
        """Wait until the image has all records that are committed at the time of the call."""
        while True:
            try:
                await self._metadata.until_current()
                return
            except (KafkaError, TimeoutError):
                await asyncio.sleep(RETRY_S)

    async def _send(self, request: ControllerRegistrationRequest) -> ControllerRegistrationResponse:
        channel = self._service.handle if self._service.is_active else self._remote.send
        answer = await channel(request)
        assert isinstance(answer, ControllerRegistrationResponse)
        return answer

    def _is_missing(self) -> bool:
        image = self._publisher.image
        if image.metadata_version < METADATA_VERSION_SINCE:
            return False
        found = image.controllers.get(self._node_id)
        return found is None or found.incarnation_id != self._incarnation_id

    def _request(self) -> ControllerRegistrationRequest:
        listeners = []
        for endpoint in controller_endpoints(self._config):
            bound = self._listeners.find(endpoint.name)
            port = endpoint.port or (0 if bound is None else bound.port)
            listeners.append(
                Listener(name=endpoint.name, host=endpoint.host, port=port, security_protocol=_PLAINTEXT)
            )
        return ControllerRegistrationRequest(
            controller_id=self._node_id,
            incarnation_id=self._incarnation_id,
            listeners=listeners,
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in self._features.items()
            ],
        )
