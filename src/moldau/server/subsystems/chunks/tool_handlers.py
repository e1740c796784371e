"""The requests of tools for chunks (KIP-1114): CreateChunks at the leaders of the partitions, and
AlterChunkAssignments, which the controller decides.
"""

import asyncio
from typing import Final

from moldau.cluster.controller.answers import error_response
from moldau.cluster.controller.channel import ControllerChannel, deadline_of
from moldau.cluster.controller.decided_apis import DECIDED_APIS
from moldau.network.authorization import Authorizer
from moldau.network.context import RequestContext
from moldau.network.own_serving import check_right
from moldau.network.served import Handler, Served
from moldau.protocol.own.chunks.alter_chunk_assignments import AlterChunkAssignmentsRequest
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksResponse
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.creation import ChunkCreation

ROWS_MAX: Final = 100
"""Maximum number of chunks that one request creates. Each new chunk delays the producers of a partition."""

CREATION_RIGHT: Final = Right.ALTER_CLUSTER
"""The right that a client needs for CreateChunks. The leader checks it, because the leader then sends its own
request to the controller."""


class ChunkToolHandlers:
    """Answers CreateChunks and AlterChunkAssignments."""

    def __init__(
        self, creation: ChunkCreation, controller: ControllerChannel, authorizer: Authorizer
    ) -> None:
        self._creation = creation
        self._controller = controller
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        moves = AlterChunkAssignmentsRequest.API_KEY
        return {
            CreateChunksRequest.API_KEY: Served(self.create, right=CREATION_RIGHT),
            moves: Served(self.alter, right=DECIDED_APIS[moves].right),
        }

    async def create(self, context: RequestContext, request: CreateChunksRequest) -> CreateChunksResponse:
        """End the active chunks of partitions that this broker leads. One entry of the request may fail while
        other entries succeed."""
        check_right(self._authorizer, context, CREATION_RIGHT)
        if len(request.topic_partitions) > ROWS_MAX:
            reason = f"a request creates {ROWS_MAX} chunks at most"
            raise KafkaError(ErrorCode.invalid_request, reason)
        results = await asyncio.gather(*map(self._creation.create, request.topic_partitions))
        return CreateChunksResponse(results=results)

    async def alter(self, context: RequestContext, request: AlterChunkAssignmentsRequest) -> Message:
        """Move inactive chunks, or cancel their moves. The response has an error in a chunk's entry, or one
        error for the whole response."""
        check_right(self._authorizer, context, DECIDED_APIS[request.API_KEY].right)
        try:
            response: Message = await self._controller.send(request, deadline=deadline_of(context, request))
        except KafkaError as error:
            return error_response(request, error.code, error.message)
        return response
