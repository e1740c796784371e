"""Producer ids for idempotent producers. The controller allocates them in blocks (KIP-730)."""

import asyncio

from moldau.cluster.controller.channel import ControllerChannel
from moldau.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from moldau.runtime.errors import ErrorCode, KafkaError


class ProducerIds:
    """Allocates ids that no other producer of the cluster has had."""

    def __init__(self, controller: ControllerChannel, broker_id: int) -> None:
        self._controller = controller
        self._broker_id = broker_id
        self._broker_epoch = -1
        self._next = 0
        self._end = 0
        self._refill: asyncio.Task[None] | None = None

    def set_broker_epoch(self, broker_epoch: int) -> None:
        """The epoch of this broker's registration. The controller checks this epoch."""
        self._broker_epoch = broker_epoch

    async def next_id(self) -> int:
        """Return a new producer id. Raises ``KafkaError`` (retriable) while no block is available."""
        while self._next >= self._end:
            if self._refill is None:
                self._refill = asyncio.get_running_loop().create_task(self._take_block())
            try:
                await asyncio.shield(self._refill)
            finally:
                if self._refill is not None and self._refill.done():
                    self._refill = None
        found = self._next
        self._next += 1
        return found

    async def _take_block(self) -> None:
        response: AllocateProducerIdsResponse = await self._controller.send(
            AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch)
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(
                ErrorCode.coordinator_load_in_progress, f"no producer ids yet: {response.error_code.name}"
            )
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len

    async def close(self) -> None:
        """Cancel a request for a block."""
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.gather(self._refill, return_exceptions=True)
