"""DisklessReadObject: read a range of a WAL object for another broker of the rack.

The module has the messages of the call and its declaration.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from moldau.network.own_calls import BrokerCall
from moldau.protocol.own.rights import Right
from moldau.protocol.schema import Message, Records, message, wire
from moldau.runtime import ErrorCode

__all__ = ["CALLS", "READ_OBJECT", "REQUEST", "RESPONSE", "ObjectRange", "RackPeers", "RackReader"]


@message
class DisklessReadObjectRequest(Message):
    API_KEY = 11659
    VERSIONS = "0"
    FLEXIBLE = "0+"
    object_key: str = wire("string")
    byte_offset: int = wire("int64")
    byte_size: int = wire("int32")
    timeout_ms: int = wire("int32", default=60_000)
    """Time in ms for which the caller waits for the response."""


@message
class DisklessReadObjectResponse(Message):
    API_KEY = 11659
    VERSIONS = "0"
    FLEXIBLE = "0+"
    throttle_time_ms: int = wire("int32", default=0)
    error_code: ErrorCode = wire("error_code", default=ErrorCode.none)
    error_message: str | None = wire("string", nullable="0+", default=None)
    content: Records = wire("records", nullable="0+", default=None)
    """The bytes of the range; null if there is an error."""


class ObjectRange(NamedTuple):
    """A range of bytes of an object."""

    object_key: str
    byte_offset: int
    byte_size: int


class RackReader(Protocol):
    """Reads objects for the other brokers of its rack."""

    async def read_for_rack(self, wanted: ObjectRange) -> memoryview:
        """Exactly the bytes of the range.

        Raises ``KafkaError``: INVALID_REQUEST for an object that is not a WAL object, KAFKA_STORAGE_ERROR
        when the store fails or has no such object.
        """
        ...


class RackPeers(Protocol):
    """Reads objects through the other brokers of the rack."""

    async def read_object(self, broker_id: int, wanted: ObjectRange) -> memoryview:
        """Like :meth:`RackReader.read_for_rack`. It also raises errors of lost connections."""
        ...


async def _serve(reader: RackReader, wanted: ObjectRange) -> memoryview:
    return await reader.read_for_rack(wanted)


def _content(response: Any) -> memoryview:
    return memoryview(response.content or b"")


READ_OBJECT: Final[BrokerCall[RackReader, ObjectRange, memoryview]] = BrokerCall(
    request=DisklessReadObjectRequest,
    response=DisklessReadObjectResponse,
    right=Right.CLUSTER_ACTION,
    serve=_serve,
    request_fields=lambda wanted, version: wanted._asdict(),
    arguments=lambda request: ObjectRange(request.object_key, request.byte_offset, request.byte_size),
    response_fields=lambda content, version: {"content": content},
    result=_content,
)

CALLS: Final[Mapping[int, BrokerCall[RackReader, Any, Any]]] = MappingProxyType(
    {READ_OBJECT.api_key: READ_OBJECT}
)
REQUEST = DisklessReadObjectRequest
RESPONSE = DisklessReadObjectResponse
