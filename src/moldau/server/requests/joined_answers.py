"""The response to a whole request. It is encoded piece by piece while the responses to the request's slices
arrive.

A *row* is one entry of an array in the request or in the response, for example a partition. Only the bytes of
finished rows are kept, not their objects. A row of six bytes in a request may cause objects of several
hundred bytes in the response. If a slice ends in the middle of a row, the row continues in the next slice.
Therefore the last row of each nested array is not finished until the next row, or the next part of the same
row, arrives.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moldau.network.context import Buffers
from moldau.protocol.codec import encode_response, response_class
from moldau.protocol.compiler.encoding import array_encoders
from moldau.protocol.schema import Message, is_flexible, layout
from moldau.runtime.errors import ErrorCode


class JoinedAnswer:
    """Joins the responses to the slices of a request, in one version of the API. ``path`` lists the fields
    from the outermost array to the innermost."""

    def __init__(self, api_key: int, version: int, path: tuple[str, ...]) -> None:
        self._api_key = api_key
        self._version = version
        self._path = path
        cls = response_class(api_key)
        self._rows = EncodedRows(cls, version, is_flexible(cls, version), path)
        self._first: Message | None = None
        self._refusal: Message | None = None

    @property
    def message(self) -> Message | None:
        """The response without its rows, or the error that replaces the response. It is None before the first
        slice is answered."""
        return self._refusal or self._first

    def add(self, answer: Any) -> None:
        """Add the response to the next slice. An error of the whole request replaces all rows."""
        if self._refusal is not None:
            return
        if getattr(answer, "error_code", ErrorCode.none) is not ErrorCode.none:
            self._refusal = answer
            self._rows.clear()
            return
        if self._first is None:
            self._first = _without(answer, self._path[0])
        self._rows.extend(getattr(answer, self._path[0]))

    def encoded(self, message: Message) -> Buffers:
        """Encode the body of the response. ``message`` is a copy of :attr:`message`; the caller may have
        changed fields outside the rows."""
        if self._refusal is not None:
            return encode_response(self._api_key, self._version, message)
        return [self._rows.encoded(message)]


class EncodedRows:
    """The rows of an array, encoded as bytes. If rows have nested rows, the last row is not encoded yet,
    because the response to the next slice may add nested rows to it."""

    def __init__(self, cls: type[Message], version: int, flexible: bool, path: tuple[str, ...]) -> None:
        self._encoders = array_encoders(cls, version, flexible, path[0])
        self._inner = path[1:]
        fields = layout(cls, version, flexible).fields
        self._within = (next(field.kind for field in fields if field.name == path[0]), version, flexible)
        self._count = 0
        self._pieces: list[bytes] = []
        self._last: Any = None
        self._last_rows: EncodedRows | None = None

    def extend(self, rows: Sequence[Any]) -> None:
        """Append rows. The first row may continue the last row of the previous slice."""
        if not self._inner:
            self._encode(rows)
            return
        if not rows:
            return
        field = self._inner[0]
        if self._last_rows is not None and self._last == _without(rows[0], field):
            self._last_rows.extend(getattr(rows[0], field))
            rows = rows[1:]
        if not rows:
            return
        self._close()
        self._encode(rows[:-1])
        kind, version, flexible = self._within
        assert not isinstance(kind, str), "an array of structs"
        self._last = _without(rows[-1], field)
        self._last_rows = EncodedRows(kind, version, flexible, self._inner)
        self._last_rows.extend(getattr(rows[-1], field))

    def encoded(self, owner: Message) -> bytes:
        """Encode the message ``owner``, with the joined rows as the content of its array."""
        self._close()
        encoders = self._encoders
        return b"".join(
            (encoders.before(owner), encoders.length(self._count), *self._pieces, encoders.after(owner))
        )

    def clear(self) -> None:
        self._count = 0
        self._pieces.clear()
        self._last = self._last_rows = None

    def _encode(self, rows: Sequence[Any]) -> None:
        if rows:
            self._pieces.append(self._encoders.rows(rows))
            self._count += len(rows)

    def _close(self) -> None:
        if self._last_rows is not None:
            self._pieces.append(self._last_rows.encoded(self._last))
            self._count += 1
            self._last = self._last_rows = None


def _without(row: Any, field: str) -> Any:
    return replace(row, **{field: ()})
