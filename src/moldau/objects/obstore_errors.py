"""Converts obstore's exceptions to :class:`StorageError`, with its kind, a readable line, and whether it is
transient.

obstore has the same exception class for most failures, with the server's response in its text. The HTTP
status and S3's error code are therefore read from the text.
"""

import re

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from moldau.objects.storage import ObjectNotFoundError, StorageError, StorageTimeoutError, ThrottledError

__all__ = ["OBSTORE_ERRORS", "translated"]

OBSTORE_ERRORS = (BaseError, FileNotFoundError, ValueError, OSError)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>", re.DOTALL)

_THROTTLED_CODES = {"SlowDown", "TooManyRequests", "RequestLimitExceeded", "ServerBusy", "Throttling"}
_MISSING_STORE_CODES = {"NoSuchBucket", "ContainerNotFound"}
_PERMANENT = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
    ValueError,
)


def translated(error: BaseException, key: str = "") -> StorageError:
    """Convert ``error`` to a :class:`StorageError`."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    line = _one_line(text, code)
    if code in _MISSING_STORE_CODES or "The specified bucket does not exist" in text:
        return StorageError(f"the bucket or container does not exist ({code or status})", transient=False)
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(key) if key else StorageError(line, transient=False)
    if status == 429 or code in _THROTTLED_CODES:
        return ThrottledError(line)
    if status == 416:
        return StorageError(f"{key}: the object ends before the range ({code or status})", transient=False)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return StorageError(f"access denied: {line}", transient=False)
    if "timed out" in text or "kind: Timeout" in text:
        return StorageTimeoutError(line)
    # Request time-outs (408) and conflicts (409) are transient, like server errors and broken connections.
    is_permanent = isinstance(error, _PERMANENT) or (400 <= status < 500 and status not in (408, 409))
    return StorageError(line, transient=not is_permanent)


def _one_line(text: str, code: str) -> str:
    head = text.split("\n\nDebug source", 1)[0]
    if code:
        message = found[1] if (found := _MESSAGE.search(text)) else ""
        request = head.split(" - ", 1)[0].rsplit("Error performing ", 1)[-1]
        head = f"{code}: {message} ({request})"
    return " ".join(head.split())[:500]
