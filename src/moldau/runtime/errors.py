"""The exception with which lower layers of the code report a Kafka error code to higher layers."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Prevent an optional import of ``module`` if the module is not imported yet."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


# kio registers its types with Hypothesis if Hypothesis is installed. The registration would take half of a
# node's start time, so Hypothesis is hidden from this import.
with _hidden("hypothesis"):
    from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]


class KafkaError(Exception):
    """A request, or a part of a request, that is answered with a Kafka error code.

    ``code`` is sent to the client. ``message`` is one sentence for a person. It is sent if the response has a
    field for it.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
