"""Waiting in tests. A condition is checked again and again until it is true. If it does not become true in
time, the test fails with a message."""

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer, Message

T = TypeVar("T")
TIMEOUT_S = 120.0


def eventually(probe: Callable[[], T | None], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """Call ``probe`` until it returns a true value, and return this value. The pause between two calls is 10
    ms. Raises AssertionError with the text ``what`` after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.01)


def consume(consumer: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Message]:
    """The next ``count`` messages of a librdkafka consumer."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages within {timeout_s:.0f} s"
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages
