"""AlterChunkAssignments at a broker. The controller decides where inactive chunks are (KIP-1114)."""

from moldau.cluster.controller.answers import error_response
from moldau.cluster.controller.channel import ControllerChannel, deadline_of
from moldau.network.authorization import CLUSTER_NAME, AclOperation, AclResourceType, Authorizer
from moldau.network.context import RequestContext
from moldau.network.served import Handler
from moldau.protocol.own.chunks.alter_chunk_assignments import AlterChunkAssignmentsRequest
from moldau.protocol.schema import Message
from moldau.runtime.errors import ErrorCode, KafkaError


class ChunkAssignmentHandlers:
    """Answers AlterChunkAssignments to tools. It needs ALTER on the cluster, as a reassignment does."""

    def __init__(self, controller: ControllerChannel, authorizer: Authorizer) -> None:
        self._controller = controller
        self._authorizer = authorizer

    def table(self) -> dict[int, Handler]:
        return {AlterChunkAssignmentsRequest.API_KEY: self.alter}

    async def alter(self, context: RequestContext, request: AlterChunkAssignmentsRequest) -> Message:
        """Move inactive chunks, or cancel their moves. An error is in its row, or in the whole response."""
        if not self._authorizer.allows(context, AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.cluster_authorization_failed, "this needs ALTER on the cluster")
        try:
            response: Message = await self._controller.send(request, deadline=deadline_of(context, request))
        except KafkaError as error:
            return error_response(request, error.code, error.message)
        return response
