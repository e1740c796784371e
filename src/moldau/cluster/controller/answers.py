"""Makes the responses to requests that the controller refuses as a whole."""

import sys
from typing import Any

from moldau.cluster.controller.decided_apis import DECISIONS
from moldau.protocol.schema import Message
from moldau.runtime import ErrorCode


def error_response(request: Message, code: ErrorCode, text: str | None = None) -> Message:
    """Make the response to ``request`` with the error ``code``. The error is at the top level of the
    response, or in every entry of the response."""
    decided = DECISIONS.get(type(request))
    if decided is not None and decided.refuse_rows is not None:
        return decided.refuse_rows(request, code, text)
    response_class: type[Message] = sys.modules[type(request).__module__].RESPONSE
    values: dict[str, Any] = {"error_code": code}
    if "error_message" in response_class.__dataclass_fields__:
        values["error_message"] = text
    return response_class(**values)
