"""Our own APIs check the rights of a request's principal, at brokers and at controllers."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.cluster.controller import decided_apis
from moldau.cluster.controller.decided_apis import DECIDED_APIS, DECISIONS
from moldau.coordinators.diskless.calls.subjects.files import OLDEST_FILE
from moldau.network.authorization import AclOperation, AclResourceType
from moldau.network.context import ConnectionContext, RequestContext
from moldau.network.served import Served
from moldau.protocol.api import OWN_API_KEY_MIN
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.own.chunks.create_chunks import CreateChunksRequest
from moldau.protocol.own.rights import CLUSTER_RIGHTS, Right
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode, KafkaError
from moldau.server.extensions import Extensions
from moldau.server.subsystem import Contribution
from moldau.server.subsystems.controller.api import ControllerApi
from moldau.tiered.calls import DESCRIBE_TOPICS

OWN_DECIDED = sorted(key for key in DECIDED_APIS if key >= OWN_API_KEY_MIN)
SUFFICIENT = {
    Right.CLUSTER_ACTION: {AclOperation.CLUSTER_ACTION},
    Right.ALTER_CLUSTER: {AclOperation.CLUSTER_ACTION, AclOperation.ALTER},
}
"""The operations on the cluster that satisfy each right. A principal needs only one of them."""


class Holder:
    """A principal with some rights on the cluster."""

    def __init__(self, *operations: AclOperation) -> None:
        self._operations = operations

    def allows(
        self, context: RequestContext, operation: AclOperation, resource: AclResourceType, name: str
    ) -> bool:
        return resource is AclResourceType.CLUSTER and operation in self._operations


class Service:
    """A controller that accepts every request."""

    is_active = True

    async def handle(self, request: Message, caller: object, deadline: float | None) -> Message:
        return CreateTopicsResponse()


async def decided(api_key: int, *operations: AclOperation) -> ErrorCode:
    """Return the error with which a controller's listener refuses a request of a caller with these rights.
    Return NONE if the controller decides on the request."""
    node: Any = SimpleNamespace(driver=SimpleNamespace(describe=None), voters=None)
    service: Any = Service()
    unused: Any = None
    api = ControllerApi(node, service, unused, unused, unused, Holder(*operations))
    request = SimpleNamespace(API_KEY=api_key)
    connection = ConnectionContext(1, "CONTROLLER", "127.0.0.1", 9093, None)  # type: ignore[arg-type]
    context = RequestContext(api_key, 0, 1, "client", connection, 0.0)
    try:
        await cast(Any, api.table()[api_key](context, request))
    except KafkaError as error:
        return error.code
    return ErrorCode.none


@pytest.mark.parametrize("api_key", OWN_DECIDED)
def test_a_controller_decides_our_own_requests_only_for_callers_with_the_right_of_the_row(
    api_key: int,
) -> None:
    right = DECIDED_APIS[api_key].right
    assert right is not None

    async def story() -> None:
        assert await decided(api_key) is ErrorCode.cluster_authorization_failed
        for operation in AclOperation:
            is_enough = operation in SUFFICIENT[right]
            expected = ErrorCode.none if is_enough else ErrorCode.cluster_authorization_failed
            assert await decided(api_key, operation) is expected, f"with {operation.name}, of {right}"

    asyncio.run(story())


def test_the_table_of_sufficient_rights_is_complete() -> None:
    assert set(SUFFICIENT) == CLUSTER_RIGHTS


def test_the_requests_that_kafka_declares_are_not_refused_there() -> None:
    assert asyncio.run(decided(CreateTopicsRequest.API_KEY)) is ErrorCode.none


def test_an_own_api_without_a_right_is_refused() -> None:
    row = dataclasses.replace(DECISIONS[CreateChunksRequest], right=None)
    with pytest.raises(ValueError, match="CreateChunksRequest is our own API"):
        decided_apis._by_key({CreateChunksRequest: row})
    with pytest.raises(ValueError, match=r"API 11140 is our own, and its row .* declares no right"):
        Extensions().add(Contribution(handlers={11140: lambda context, request: None}))
    row_of_handler = Served(lambda context, request: None, right=Right.ALTER_CLUSTER)
    Extensions().add(Contribution(handlers={11140: row_of_handler}))


def test_a_call_for_readers_names_its_topics() -> None:
    with pytest.raises(ValueError, match=r"TieredDescribeTopicsRequest requires READ .* topics="):
        dataclasses.replace(DESCRIBE_TOPICS, right=Right.READ_TOPIC)
    with pytest.raises(ValueError, match=r"DisklessOldestFileRequest requires READ .* topic_ids="):
        dataclasses.replace(OLDEST_FILE, right=Right.READ_TOPIC)
