"""The requests of each API that cost most for their size. They consist of tags, or of arrays with as many of
the smallest items as possible."""

from collections.abc import Iterator
from struct import calcsize

from moldau.protocol.compiler.primitives import FIXED_FORMATS, uvarint
from moldau.protocol.schema import FieldLayout, Message, is_flexible, layout

UNKNOWN_TAG = b"\x7f\0"


def worst_requests(cls: type[Message], version: int, size_bytes: int) -> Iterator[bytes]:
    """Request bodies of about ``size_bytes``. There is one body for each array of the message, and one with
    tags."""
    flexible = is_flexible(cls, version)
    minimal = _Minimal(version, flexible)
    for path in minimal.arrays(cls, ()):
        yield minimal.struct(cls, path, size_bytes)
    if flexible:
        body = minimal.struct(cls, (), 0)
        count = size_bytes // len(UNKNOWN_TAG)
        yield body[:-1] + uvarint(count) + UNKNOWN_TAG * count


class _Minimal:
    """Encodes messages. All fields except one array use as few bytes as possible."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible

    def arrays(self, cls: type[Message], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The path of fields to each array, including nested arrays."""
        for field in layout(cls, self.version, self.flexible).fields:
            if field.array:
                yield (*path, field.name)
            if not isinstance(field.kind, str):
                yield from self.arrays(field.kind, (*path, field.name))

    def struct(self, cls: type[Message], path: tuple[str, ...], size_bytes: int) -> bytes:
        """A message whose array at ``path`` has ``size_bytes`` bytes. All other arrays are empty or null."""
        fields = layout(cls, self.version, self.flexible).fields
        out = b"".join(
            self.field(field, path[1:], size_bytes, chosen=bool(path) and field.name == path[0])
            for field in fields
        )
        return out + (b"\0" if self.flexible else b"")

    def field(self, field: FieldLayout, path: tuple[str, ...], size_bytes: int, *, chosen: bool) -> bytes:
        if field.array:
            if not chosen:
                return self.length(0, 4)
            if path:  # one item that contains the array
                assert not isinstance(field.kind, str)
                return self.length(1, 4) + self.struct(field.kind, path, size_bytes)
            item = self.item(field)
            count = max(1, size_bytes // len(item))
            return self.length(count, 4) + item * count
        if not isinstance(field.kind, str):
            if field.nullable and not chosen:
                return b"\xff"
            return (b"\x01" if field.nullable else b"") + self.struct(
                field.kind, path if chosen else (), size_bytes
            )
        return self.item(field)

    def item(self, field: FieldLayout) -> bytes:
        if not isinstance(field.kind, str):
            return self.struct(field.kind, (), 0)
        if field.kind in FIXED_FORMATS:
            return bytes(calcsize(">" + FIXED_FORMATS[field.kind]))
        return self.length(0, 2 if field.kind == "string" else 4)

    def length(self, size: int, width: int) -> bytes:
        return uvarint(size + 1) if self.flexible else size.to_bytes(width, "big")
