"""Kafka's wire protocol: messages, their encoders and decoders, framing, and the table of APIs. Pure."""

from moldau.protocol.decoding_errors import ProtocolError

__all__ = ["ProtocolError"]
