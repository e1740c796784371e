"""Exceptions of decoding."""


class ProtocolError(Exception):
    """The bytes are not a valid message of the expected API key and version. The connection that sent them is
    closed."""


class ParsedSizeError(ProtocolError):
    """A message that would take more memory, after it is parsed, than the caller allows."""

    def __init__(self, message: str, excess_bytes: int) -> None:
        super().__init__(message)
        self.excess_bytes = excess_bytes
        """Lower bound of the number of bytes by which the message exceeds the limit."""
