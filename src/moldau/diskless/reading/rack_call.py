"""The call between brokers of a rack for a range of a WAL object (API 11659)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from moldau.network.own_calls import BrokerCall
from moldau.protocol.own.diskless import read_object as wire
from moldau.protocol.own.rights import Right

__all__ = ["CALLS", "READ_OBJECT", "ObjectRange", "RackPeers", "RackReader"]


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
    """The other brokers of the rack."""

    async def read_object(self, broker_id: int, wanted: ObjectRange) -> memoryview:
        """Like :meth:`RackReader.read_for_rack`. It also raises errors of lost connections."""
        ...


async def _serve(reader: RackReader, wanted: ObjectRange) -> memoryview:
    return await reader.read_for_rack(wanted)


def _content(response: Any) -> memoryview:
    return memoryview(response.content or b"")


READ_OBJECT: Final[BrokerCall[RackReader, ObjectRange, memoryview]] = BrokerCall(
    request=wire.REQUEST,
    response=wire.RESPONSE,
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
