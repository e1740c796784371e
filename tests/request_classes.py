"""The class of each API's request."""

from moldau.protocol import codec
from moldau.protocol.schema import Message


def request_class(api_key: int) -> type[Message]:
    """The request's class; raises ProtocolError for an unknown key."""
    return codec._load(api_key)[0]
