"""The one exception that decoding raises."""


class ProtocolError(Exception):
    """Bytes that are not what their API key and version say; the connection that sent them is closed."""
