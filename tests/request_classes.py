"""The class of each API's request."""

from moldau.protocol import codec
from moldau.protocol.schema import Message


def request_class(api_key: int) -> type[Message]:
    """The class of the request. Raises ProtocolError for an unknown API key."""
    return codec._load(api_key)[0]
