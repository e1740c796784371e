"""The handler of CreateChunks requests from tools, at the leaders of the partitions."""

import asyncio
from typing import Final

from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest, CreateChunksResponse
from moldau.runtime.errors import ErrorCode, KafkaError
from moldau.server.subsystems.chunks.creation import ChunkCreation

ROWS_MAX: Final = 100
"""Maximum number of chunks that one request creates. Each of them delays the producers of a partition."""


class CreateChunksHandler:
    """Answers CreateChunks."""

    def __init__(self, creation: ChunkCreation, authorizer: Authorizer) -> None:
        self._creation = creation
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {CreateChunksRequest.API_KEY: self.create}

    async def create(self, context: RequestContext, request: CreateChunksRequest) -> CreateChunksResponse:
        """End the active chunks of partitions that this broker leads. A row may fail while other rows
        succeed."""
        if not self._authorizer.allows(context, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.cluster_authorization_failed)
        if len(request.topic_partitions) > ROWS_MAX:
            reason = f"a request creates {ROWS_MAX} chunks at most"
            raise KafkaError(ErrorCode.invalid_request, reason)
        results = await asyncio.gather(*map(self._creation.create, request.topic_partitions))
        return CreateChunksResponse(results=results)
